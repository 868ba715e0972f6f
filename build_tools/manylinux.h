// Included first by `make wheel`: keeps the library that GCC 12 compiles from asking for what the
// libstdc++ of manylinux_2_28 does not have yet.
#pragma once

#include <new>

// The member functions of streams and strings are compiled into the library. (After <new>, which
// includes the header that sets the macro.)
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0

namespace std {
[[noreturn]] inline void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
