// SPDX-License-Identifier: Apache-2.0
// Random hostile calls of every operator through the C interface, built with sanitizers and run by
// tests/sanitize/run.py.
//
//   driver SEED FIRST COUNT     makes the calls FIRST, FIRST + 1, ... of this seed
//
// For valid calls it checks that results are the same bytes for 1, 2 and 3 threads, when repeated,
// and from several threads at once; that outputs are written completely; that no memory is read
// before it is written (scratch memory is full of NaN in this build); that padding makes rows of
// zeros, and unusable coordinates rows of NaN; that finite maps give finite results; and the
// adjoint identity <y, g> = <x, J^T g>. It checks that invalid calls fail with a message and write
// nothing.
//
// Prints "level LEVEL", and for each call its number and a digest of its results, which must not
// depend on the level. A failure ends the process; the last line is the command that repeats it.
//
// A new operator that pools boxes is called without a change here; calls.h makes the inputs of
// others.
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "wrong_calls.h"

namespace sanitize {
namespace {

std::string line_of(uint64_t number, const Call& call) {
  return "call " + std::to_string(number) + ", " + call.text() + "\nrepeat it with: " + program +
         " " + std::to_string(seed) + " " + std::to_string(number) + " 1";
}

// Repeats the valid calls from several threads of the program at the same time.
void check_callers(const std::vector<Call>& calls, const std::vector<uint64_t>& digests,
                   uint64_t first, uint64_t last) {
  current = "calls " + std::to_string(first) + " to " + std::to_string(last) +
            " from 4 threads\nrepeat them with: " + program + " " + std::to_string(seed) + " " +
            std::to_string(first) + " " + std::to_string(last + 1 - first);
  constexpr size_t kCallers = 4;
  std::vector<std::thread> callers;
  std::vector<std::string> wrong(kCallers);
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t i = caller; i < calls.size() + caller; ++i) {
        const size_t which = i % calls.size();
        if (digest_of(run(calls[which], 2, 0xff)) != digests[which]) {
          wrong[caller] = "another result beside other calls: " + calls[which].text();
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& sentence : wrong) {
    if (!sentence.empty()) fail(sentence);
  }
}

}  // namespace
}  // namespace sanitize

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "driver: expected SEED FIRST COUNT\n");
    return 2;
  }
  using namespace sanitize;
  program = arguments[0];
  seed = strtoull(arguments[1], nullptr, 10);
  const uint64_t first = strtoull(arguments[2], nullptr, 10);
  const uint64_t last = first + strtoull(arguments[3], nullptr, 10);
  report_signals();

  const std::string info = gluon_roi_build_info();
  const size_t level = info.find("\"simd\": \"") + 9;
  printf("level %s\n", info.substr(level, info.find('"', level) - level).c_str());
  constexpr size_t kTogether = 16;
  std::vector<Call> calls;
  std::vector<uint64_t> digests, numbers;
  for (uint64_t number = first; number < last; ++number) {
    alarm(300);
    Random random(seed, number);
    current = "call " + std::to_string(number);
    Call call = random_call(&random);
    current = line_of(number, call);
    if (random.chance(0.3)) {
      printf("%" PRIu64 " %016" PRIx64 "\n", number, wrong_call(&random, call));
    } else {
      digests.push_back(right_call(call));
      printf("%" PRIu64 " %016" PRIx64 "\n", number, digests.back());
      calls.push_back(std::move(call));
      numbers.push_back(number);
    }
    if (calls.size() == kTogether || (number + 1 == last && !calls.empty())) {
      check_callers(calls, digests, numbers.front(), number);
      numbers.clear();
      calls.clear();
      digests.clear();
    }
  }
  return 0;
}