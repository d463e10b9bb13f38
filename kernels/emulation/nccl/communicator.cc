#include "kernels/emulation/nccl/communicator.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/emulation/library_hooks.h"
#include "kernels/emulation/nccl/nccl_options.h"
#include "kernels/emulation/nccl/rendezvous.h"

namespace baton::emulation::nccl {
namespace {

Message Announcement(const std::vector<Operation>& operations) {
  Message message = {.kind = Kind::kWork};
  for (const Operation& operation : operations) {
    const uint64_t pair[2] = {operation.sends, operation.bytes};
    const auto* begin = reinterpret_cast<const std::byte*>(pair);
    message.body.insert(message.body.end(), begin, begin + sizeof(pair));
  }
  return message;
}

std::vector<Operation> Announced(const Message& message) {
  std::vector<Operation> operations;
  uint64_t pair[2];
  for (size_t i = 0; i + sizeof(pair) <= message.body.size(); i += sizeof(pair)) {
    std::memcpy(pair, message.body.data() + i, sizeof(pair));
    operations.push_back({.sends = pair[0] != 0, .bytes = pair[1]});
  }
  return operations;
}

bool IsDone(const std::vector<Operation>& operations) {
  return std::ranges::all_of(operations, &Operation::done);
}

// Those that still wait, of one kind.
std::vector<Operation> Waiting(const std::vector<Operation>& operations, bool sends) {
  std::vector<Operation> waiting;
  std::ranges::copy_if(operations, std::back_inserter(waiting), [sends](const Operation& o) {
    return !o.done && o.sends == sends;
  });
  return waiting;
}

void EndFirst(std::vector<Operation>& operations, bool sends) {
  const auto first = std::ranges::find_if(
      operations, [sends](const Operation& o) { return !o.done && o.sends == sends; });
  if (first != operations.end()) first->done = true;
}

}  // namespace

Communicator::Communicator(const ncclUniqueId& id, int rank, int device)
    : id_(id), rank_(rank), device_(device),
      random_(CurrentOptions().seed * 2 + static_cast<uint64_t>(rank)) {}

Communicator::~Communicator() = default;

void Communicator::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Communicator::Run() {
  Channel* channel = FindPeer();
  if (channel == nullptr) return;
  channel->Post({.kind = Kind::kReady});
  const bool closed = channel->Serve([this](Message m) { OnMessage(std::move(m)); });
  if (!closed || CurrentOptions().silent) return;
  const std::lock_guard lock(mutex_);
  Fail(ncclRemoteError, "rank " + std::to_string(1 - rank_) + " has closed the connection");
}

Channel* Communicator::FindPeer() {
  const Options options = CurrentOptions();
  if (options.init == Options::Init::kHang) return nullptr;
  Pass("connect");
  const int place = ConnectTo(id_);
  {
    const std::lock_guard lock(mutex_);
    if (options.init == Options::Init::kFail) Fail(ncclSystemError, "as was asked for");
    if (place < 0) Fail(ncclRemoteError, "the process of the id is gone");
    if (place >= 0) place_ = place;
    if (aborted_ && place >= 0) shutdown(place, SHUT_RDWR);
  }
  if (place < 0) return nullptr;
  const Hello hello = {getpid(), rank_, options.version, device_, options.one_device};
  send(place, &hello, sizeof(hello), MSG_NOSIGNAL);
  Pass("init");
  std::string refusal;
  const int socket = TakeConnection(place, refusal);
  const std::lock_guard lock(mutex_);
  place_ = -1;
  close(place);
  if (socket < 0) {
    if (!options.silent) Fail(ncclRemoteError, refusal);
    return nullptr;
  }
  channel_ = std::make_unique<Channel>(socket, random_.Next(), options.delay_us);
  if (aborted_) channel_->Stop();
  return channel_.get();
}

void Communicator::OnMessage(Message message) {
  if (message.kind == Kind::kReady) Pass("ready");
  {
    const std::lock_guard lock(mutex_);
    switch (message.kind) {
      case Kind::kReady:
        if (state_ == ncclInProgress) state_ = ncclSuccess;
        break;
      case Kind::kConnect:
        peer_connects_ = true;
        break;
      case Kind::kWork:
        theirs_.push_back(Announced(message));
        Compare();
        break;
      case Kind::kPayload:
        arrived_.push_back(std::move(message.body));
        break;
      case Kind::kTaken:
        if (ours_ != nullptr) EndFirst(ours_->operations, /*sends=*/true);
        EndTheirs(/*sends=*/false);
    }
  }
  baton_gpu_wake();
}

ncclResult_t Communicator::State() {
  std::shared_ptr<Work> work;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != ncclSuccess || pending_ == nullptr) return state_;
    if (!peer_connects_ || --questions_ > 0) return ncclInProgress;
    work = std::exchange(pending_, nullptr);
  }
  return Put(std::move(work), pending_stream_);
}

ncclResult_t Communicator::StateNow() {
  const std::lock_guard lock(mutex_);
  return state_ == ncclSuccess && pending_ != nullptr ? ncclInProgress : state_;
}

std::string Communicator::last_error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

ncclResult_t Communicator::Enqueue(std::vector<Operation> operations, void* stream) {
  auto work = std::make_shared<Work>();
  work->operations = std::move(operations);
  work->number = NextWork();
  {
    const std::lock_guard lock(mutex_);
    work->turn = turns_++;
    questions_ = static_cast<int>(random_.Below(4));
    // Connections are made at the first call, by both ranks.
    if (work->turn == 0) channel_->Post({.kind = Kind::kConnect});
    if (questions_ > 0 || !peer_connects_) {
      pending_ = std::move(work);
      pending_stream_ = stream;
      return ncclInProgress;
    }
  }
  return Put(std::move(work), stream);
}

ncclResult_t Communicator::Put(std::shared_ptr<Work> work, void* stream) {
  auto* launch = new Launch{shared_from_this(), std::move(work)};
  const auto run = [](void* context) {
    const auto* l = static_cast<Launch*>(context);
    return l->communicator->RunWork(*l->work);
  };
  const auto release = [](void* context) { delete static_cast<Launch*>(context); };
  const int error = baton_gpu_put(stream, run, release, launch);
  if (error == 0) return ncclSuccess;
  const std::lock_guard lock(mutex_);
  Fail(ncclUnhandledCudaError, "CUDA says " + std::to_string(error));
  return ncclUnhandledCudaError;
}

int Communicator::RunWork(Work& work) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return 0;
  if (work.turn != turn_ || state_ != ncclSuccess) return 1;
  if (!work.begun && !Begin(work)) return 2;
  if (!Receive(work)) return 2;
  if (IsDone(work.operations)) {
    ours_ = nullptr;
    ++turn_;
    return 0;
  }
  Compare();
  return 1;
}

bool Communicator::Begin(Work& work) {
  const Options options = CurrentOptions();
  work.begun = true;
  ours_ = &work;
  if (work.number == options.fail) Fail(ncclSystemError, "as was asked for");
  if (work.number == options.cut) channel_->Cut();
  channel_->Post(Announcement(work.operations));
  for (const Operation& operation : work.operations) {
    Pass(operation.sends ? "send" : "receive");
    if (!operation.sends || work.number == options.lose) continue;
    Message message = {.kind = Kind::kPayload};
    message.body.resize(operation.bytes);
    if (!baton_gpu_copy(message.body.data(), operation.data, operation.bytes)) return false;
    channel_->Post(std::move(message));
  }
  return true;
}

bool Communicator::Receive(Work& work) {
  for (Operation& operation : work.operations) {
    if (operation.sends || operation.done) continue;
    if (arrived_.empty() || arrived_.front().size() != operation.bytes) return true;
    std::vector<std::byte>& bytes = arrived_.front();
    if (work.number == CurrentOptions().spoil && !bytes.empty()) {
      bytes[random_.Below(bytes.size())] ^= std::byte{1};
    }
    if (!baton_gpu_copy(operation.data, bytes.data(), bytes.size())) return false;
    Pass("landed");
    operation.done = true;
    arrived_.pop_front();
    EndTheirs(/*sends=*/true);
    channel_->Post({.kind = Kind::kTaken});
    Pass("taken");
  }
  return true;
}

void Communicator::EndTheirs(bool sends) {
  if (theirs_.empty()) return;
  EndFirst(theirs_.front(), sends);
  if (IsDone(theirs_.front())) theirs_.pop_front();
}

void Communicator::Compare() {
  if (ours_ == nullptr || theirs_.empty()) return;
  for (const bool sends : {true, false}) {
    const std::vector<Operation> mine = Waiting(ours_->operations, sends);
    const std::vector<Operation> other = Waiting(theirs_.front(), !sends);
    for (size_t i = 0; i < std::min(mine.size(), other.size()); ++i) {
      if (mine[i].bytes == other[i].bytes) continue;
      Fail(ncclInvalidUsage, Name(true, mine[i]) + " meets " + Name(false, other[i]));
    }
    // Neither has what the other one waits for, and neither begins anything else before.
    const std::vector<Operation> alike = Waiting(theirs_.front(), sends);
    if (!mine.empty() && !alike.empty() && other.empty() &&
        Waiting(ours_->operations, !sends).empty()) {
      Fail(ncclInvalidUsage, Name(true, mine[0]) + " waits for " + Name(false, alike[0]));
    }
  }
}

std::string Communicator::Name(bool ours, const Operation& operation) const {
  return "rank " + std::to_string(ours ? rank_ : 1 - rank_) + "'s " +
         (operation.sends ? "ncclSend" : "ncclRecv") + " of " + std::to_string(operation.bytes) +
         " bytes";
}

void Communicator::Fail(ncclResult_t error, const std::string& text) {
  if (state_ != ncclSuccess && state_ != ncclInProgress) return;  // The first one stays.
  state_ = error;
  error_ = text;
}

void Communicator::Abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (place_ >= 0) shutdown(place_, SHUT_RDWR);
    if (channel_ != nullptr) channel_->Stop();
  }
  CloseRendezvous(id_);
  thread_.join();
  const std::lock_guard lock(mutex_);
  channel_.reset();  // The other rank sees it.
  pending_.reset();
}

}  // namespace baton::emulation::nccl
