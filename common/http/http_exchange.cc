#include "common/http/http_exchange.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::http {

Exchange::Exchange(std::shared_ptr<Connection> connection, ServerCore* core, uint64_t id,
                   bool chunked)
    : connection_(std::move(connection)),
      core_(core),
      strand_(boost::asio::make_strand(core->handlers)),
      id_(id),
      chunked_(chunked) {}

Exchange::~Exchange() {
  if (!ended_) connection_->Post([c = connection_, id = id_] { c->AbandonExchange(id); });
}

void Exchange::Respond(Response response) {
  if (ended_.exchange(true)) return;
  connection_->Run([c = connection_, id = id_, r = std::move(response)]() mutable {
    c->Respond(id, std::move(r));
  });
}

void Exchange::StartStream(Response response) {
  if (ended_) return;
  std::string first = std::exchange(response.body, {});
  connection_->Run([c = connection_, id = id_, r = std::move(response)]() mutable {
    c->BeginStream(id, std::move(r));
  });
  if (!first.empty()) Write(std::move(first));
}

bool Exchange::Write(std::string piece) {
  if (ended_ || piece.empty()) return !ended_ && !connection_->gone();
  std::string framed = chunked_ ? absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n")
                                : std::move(piece);
  if (!connection_->Reserve(framed.size())) {
    connection_->Post([c = connection_, id = id_] { c->AbortExchange(id); });
    return false;
  }
  connection_->Run([c = connection_, id = id_, f = std::move(framed)]() mutable {
    c->Continue(id, std::move(f));
  });
  return true;
}

void Exchange::OnRoom(std::function<void()> callback) {
  if (ended_) return;
  connection_->Run([c = connection_, id = id_, post = InOrder(std::move(callback))]() mutable {
    c->AwaitRoom(id, std::move(post));
  });
}

void Exchange::Finish(bool close) {
  if (ended_.exchange(true)) return;
  connection_->Run([c = connection_, id = id_, close] { c->EndStream(id, close); });
}

void Exchange::Abort() {
  if (ended_.exchange(true)) return;
  connection_->Run([c = connection_, id = id_] { c->AbortExchange(id); });
}

void Exchange::OnDisconnect(std::function<void()> callback) {
  if (ended_) return;
  connection_->Run([c = connection_, id = id_, post = InOrder(std::move(callback))]() mutable {
    c->WatchDisconnect(id, std::move(post));
  });
}

void Exchange::EndBody() {
  connection_->Run([c = connection_, id = id_] { c->EndBody(id); });
}

// Runs it as a task of the answer's own, so that it is in order with the others.
std::function<void()> Exchange::InOrder(std::function<void()> callback) const {
  if (is_quick_) {
    return [core = core_, cb = std::move(callback)] { core->PostTo(core->io.get_executor(), cb); };
  }
  return [core = core_, strand = strand_, cb = std::move(callback)] { core->PostTo(strand, cb); };
}

void Exchange::Post(std::function<void()> task) {
  if (!is_quick_) {
    core_->PostTo(strand_, std::move(task));
  } else if (!core_->IsOnIoThread()) {
    core_->PostTo(core_->io.get_executor(), std::move(task));
  } else {
    try {
      task();
    } catch (const std::exception&) {  // As where it is posted: it ends this task.
    }
  }
}

}  // namespace baton::http
