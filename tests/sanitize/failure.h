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

// Called when a sanitizer has ended the process, or when a call takes too long.
inline void on_signal(int number) {
  fail(number == SIGALRM ? "a call still runs after 5 minutes"
                         : "a sanitizer found the fault above");
}

}  // namespace sanitize
