// SPDX-License-Identifier: Apache-2.0
// `make wheel` includes this first, so that a library compiled by a newer GCC and glibc requires
// nothing newer than manylinux_2_28. auditwheel reports new requirements of future versions.
//
// The compiler of the package ziglang can target glibc 2.28, but it is clang without OpenMP, whose
// threads would be a second set next to MXNet's libgomp. A container would need Docker on
// every machine that makes a wheel, and an image from another place than the package registry.
#pragma once

#ifndef __clang__
// GCC 12 reports a fault in std::string's own code that does not exist.
#pragma GCC diagnostic ignored "-Wrestrict"
#endif

#include <features.h>

// glibc 2.38: the strtoll that reads binary numbers of C23 has a different name.
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#include <cxxabi.h>

#include <exception>
#include <new>

// The member functions of strings and string streams are compiled into the library. Streams and
// locales are not, because each of their ids must exist only once in a process. (This
// comes after <new>, which includes the header that sets the macros.)
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <string>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1
#include <istream>
#include <locale>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0

// <iostream> of GCC 13: each library that uses std::cout initializes it, as before.
#undef _GLIBCXX_USE_INIT_PRIORITY_ATTRIBUTE
#define _GLIBCXX_USE_INIT_PRIORITY_ATTRIBUTE 0

namespace std {
[[noreturn]] inline void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std

// glibc 2.32: whether there is a single thread. This copy is never set, so reference counts always
// assume several threads.
extern "C" {
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
}

// GCC 14: called for an exception that leaves a noexcept function.
extern "C" __attribute__((weak)) void __cxa_call_terminate(void* exception) noexcept {
  if (exception != nullptr) abi::__cxa_begin_catch(exception);
  std::terminate();
}

// For functions that glibc has in several versions, use the first. (Not in GPU code.)
#ifndef __CUDA_ARCH__
#ifdef __x86_64__
#define GLUON_ROI_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define GLUON_ROI_FIRST_GLIBC "GLIBC_2.17"
#endif
#define GLUON_ROI_FIRST(function) \
  __asm__(".symver " #function "," #function "@" GLUON_ROI_FIRST_GLIBC);
GLUON_ROI_FIRST(dladdr)
GLUON_ROI_FIRST(dlclose)
GLUON_ROI_FIRST(dlopen)
GLUON_ROI_FIRST(dlsym)
GLUON_ROI_FIRST(exp)
GLUON_ROI_FIRST(fmod)
GLUON_ROI_FIRST(log)
GLUON_ROI_FIRST(pow)
#endif  // __CUDA_ARCH__
