// SPDX-License-Identifier: Apache-2.0
// Ends the process with a message on failure.
#pragma once
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace sanitize {

inline uint64_t seed;
inline std::string program;
inline std::string current;  // the current call

[[noreturn]] inline void fail(const std::string& sentence) {
  fflush(stdout);
  fprintf(stderr, "\n%s\n%s\n", sentence.c_str(), current.c_str());
  _exit(1);
}

// Ends the process with the current call when a sanitizer aborts it, or when a call takes too long.
inline void report_signals() {
  const auto report = [](int number) {
    fail(number == SIGALRM ? "a call still runs after 5 minutes"
                           : "a sanitizer found the fault above");
  };
  signal(SIGABRT, report);
  signal(SIGALRM, report);
}

}  // namespace sanitize

// The sanitizers call these.
extern "C" {
[[gnu::used]] inline const char* __asan_default_options() {
  return "abort_on_error=1:detect_stack_use_after_return=1";
}
[[gnu::used]] inline const char* __tsan_default_options() {
  return "abort_on_error=1:halt_on_error=1";
}
[[gnu::used]] inline const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}
}
