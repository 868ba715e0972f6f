// Included first by `make wheel`: what a library that is compiled by GCC 12 must not take from the
// libstdc++ of manylinux_2_28, which does not have it yet.
#pragma once

// The member functions of streams and strings are compiled into the library.
#define _GLIBCXX_EXTERN_TEMPLATE 0

#include <new>

namespace std {
[[noreturn]] inline void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
