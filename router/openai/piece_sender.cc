#include "router/openai/piece_sender.h"

#include <string>
#include <utility>

namespace baton {
namespace {

// An answer up to here is made at once and has its length in its head.
constexpr size_t kWholeBytes = 128 << 10;

// While it waits for room, the connection alone holds it.
class PieceSender : public std::enable_shared_from_this<PieceSender> {
 public:
  PieceSender(std::shared_ptr<http::ResponseWriter> writer, TextPieces rest,
              std::shared_ptr<const void> owner)
      : writer_(std::move(writer)), rest_(std::move(rest)), owner_(std::move(owner)) {}

  void Pump() {
    for (size_t made = 0; made < kTurnBytes && writer_->HasRoom(); made += kPieceBytes) {
      std::string piece;
      rest_.Fill(kPieceBytes, piece);
      writer_->Write(std::move(piece));
      if (rest_.done()) return writer_->Finish(/*close=*/false);
    }
    writer_->OnRoom([self = shared_from_this()] { self->Pump(); });
  }

 private:
  const std::shared_ptr<http::ResponseWriter> writer_;
  TextPieces rest_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace

void SendPieces(std::shared_ptr<http::ResponseWriter> writer, http::Response head, TextPieces body,
                std::shared_ptr<const void> owner) {
  body.Fill(kWholeBytes, head.body);
  if (body.done()) return writer->Respond(std::move(head));
  writer->StartStream(std::move(head));
  std::make_shared<PieceSender>(std::move(writer), std::move(body), std::move(owner))->Pump();
}

}  // namespace baton
