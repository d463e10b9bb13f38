// What the choices of one prompt cost a decode worker beside one choice, shared and each for
// itself. Counted by a decode node whose surroundings are played, not measured.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/choices_cost.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

constexpr double kMebibyte = 1 << 20;

// Beside what one choice costs.
void Add(const std::string& name, const ChoicesCost& cost, const ChoicesCost& one,
         std::vector<Row>* rows) {
  const auto add = [&](const char* what, double value, const char* unit, double roof) {
    rows->push_back({.name = absl::StrCat(name, ", ", what),
                     .value = value,
                     .unit = unit,
                     .roof = roof,
                     .roof_name = roof > 0 ? "n = 1" : ""});
  };
  add("blocks at the peak", cost.peak_blocks, "blocks", one.peak_blocks);
  add("handed over", static_cast<double>(cost.sent_bytes) / kMebibyte, "MiB",
      static_cast<double>(one.sent_bytes) / kMebibyte);
  add("computed on D", static_cast<double>(cost.computed_tokens), "tokens", 0);
  add("copied on D", static_cast<double>(cost.copied_tokens), "tokens", 0);
}

std::vector<Row> Count() {
  std::vector<Row> rows;
  for (const int32_t length : {100, 1999, 2000, 2001, 8000}) {
    const auto count = [length](int32_t n, bool shared) {
      return CountChoices({.num_choices = n, .shared = shared, .prompt_length = length});
    };
    const ChoicesCost one = count(1, true);
    for (const int32_t n : {1, 8}) {
      Add(absl::StrCat("prompt of ", length, ", n = ", n), count(n, true), one, &rows);
    }
    Add(absl::StrCat("prompt of ", length, ", n = 8, 8 handoffs"), count(8, false), one, &rows);
  }
  return rows;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  using namespace baton::bench;
  return PrintCounted(
      argc, argv, "choices", "what choices of one prompt share",
      "counted, K/V of Llama 3 8B in bf16, blocks of 16 tokens, answers of 4 tokens", Count);
}
