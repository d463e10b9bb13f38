#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace baton {

// Of an answer; what is made in one turn: other answers come between the turns.
inline constexpr size_t kPieceBytes = 16 << 10;
inline constexpr size_t kTurnBytes = 128 << 10;

// A long text that is made while it is written: what is not written yet exists only as what it is
// made of.
class TextPieces {
 public:
  // Appends a little; false once nothing comes after it.
  using Step = std::function<bool(std::string& out)>;

  void Add(std::string_view text);
  void AddSteps(Step step);
  // The items 0 .. count - 1 in brackets, with commas.
  void AddArray(size_t count, std::function<void(size_t index, std::string& out)> item);
  // The inside of a JSON string. `text` is UTF-8 and lives as long as `owner`.
  void AddEscaped(std::shared_ptr<const void> owner, std::string_view text);

  bool done() const { return parts_.empty(); }
  // Appends what comes next until `out` has so many bytes, or a little more, or all is done.
  void Fill(size_t bytes, std::string& out);
  void FillOne(std::string& out);  // One part, or one step of it.

 private:
  std::deque<std::variant<std::string, Step>> parts_;
};

}  // namespace baton
