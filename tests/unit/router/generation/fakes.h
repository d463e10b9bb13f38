#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/frontend.h"
#include "router/generation/generation_service.h"
#include "router/generation/tokenizer.h"
#include "router/generation/utf8.h"

namespace baton {

// A vocabulary that shows all the trouble a real one has: id 0 begins a text, 1 ends it (both
// special), 2 + b is the byte b, and the last ones have text of their own.
class FakeTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kBegin = 0;
  static constexpr int32_t kEnd = 1;
  static constexpr int32_t kTheA = 258;      // "the"
  static constexpr int32_t kTheB = 259;      // "the" too: another id with equal text.
  static constexpr int32_t kEuroHead = 260;  // The first two bytes of a euro sign.
  static constexpr int32_t kSize = 261;

  static int32_t Byte(unsigned char b) { return 2 + b; }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool special) const override {
    std::vector<int32_t> ids;
    if (special) ids.push_back(kBegin);
    for (const char c : text) ids.push_back(Byte(static_cast<unsigned char>(c)));
    return ids;
  }
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip) const override {
    std::string bytes;
    for (const int32_t id : ids) bytes += skip && id <= kEnd ? "" : TokenBytes(id);
    return ToValidUtf8(bytes);
  }
  std::string TokenBytes(int32_t id) const override {
    if (id == kBegin) return "<s>";
    if (id == kEnd) return "</s>";
    if (id == kTheA || id == kTheB) return "the";
    if (id == kEuroHead) return "\xE2\x82";
    return id > 1 && id < 258 ? std::string(1, static_cast<char>(id - 2)) : std::string();
  }
  absl::StatusOr<std::string> ApplyChatTemplate(std::string_view messages,
                                                const ChatTemplateOptions& options) const override {
    if (messages.find("refuse me") != std::string_view::npos) {
      return absl::InvalidArgumentError("the template refuses");
    }
    return std::string(messages) + options.kwargs_json +
           (options.add_generation_prompt ? "assistant:" : "");
  }
  std::unique_ptr<StreamDecoder> NewStreamDecoder(bool skip) const override {
    return std::make_unique<Decoder>(this, skip);
  }
  int32_t max_token_bytes() const override { return most_bytes; }

  int32_t most_bytes = 0;

 private:
  class Decoder : public StreamDecoder {
   public:
    Decoder(const FakeTokenizer* owner, bool skip) : owner_(owner), skip_(skip) {}
    absl::StatusOr<std::string> Push(int32_t id) override {
      held_ += skip_ && id <= kEnd ? "" : owner_->TokenBytes(id);
      const std::string held = held_.substr(held_.size() - IncompleteBytes());
      held_.erase(held_.size() - held.size());
      return ToValidUtf8(std::exchange(held_, held));
    }
    absl::StatusOr<std::string> Flush() override { return ToValidUtf8(std::exchange(held_, {})); }

   private:
    // Length of the end that more bytes could still make a character.
    size_t IncompleteBytes() const {
      for (size_t keep = std::min<size_t>(3, held_.size()); keep > 0; --keep) {
        for (const char fill : {'\x80', '\xBF'}) {
          std::string sequence = held_.substr(held_.size() - keep);
          while (sequence.size() < 4) {
            sequence += fill;
            if (IsValidUtf8(sequence) && CodePoints(sequence) == 1) return keep;
          }
        }
      }
      return 0;
    }

    const FakeTokenizer* owner_;
    const bool skip_;
    std::string held_;
  };
};

class CountingTokenizer : public FakeTokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool special) const override {
    ++num_texts;
    return FakeTokenizer::Encode(text, special);
  }
  mutable std::atomic<int> num_texts = 0;
};

// Of a service with that tokenizer.
inline GenerationServiceOptions FakeModelOptions() {
  GenerationServiceOptions options;
  options.model_name = "fake";
  options.limits.max_model_len = 128;
  options.limits.vocab_size = FakeTokenizer::kSize;
  return options;
}

// A router's node that says what its script says. By default it answers within Submit, before the
// caller knows the key: the hardest order.
class FakeFrontend : public RouterFrontend {
 public:
  using Script = std::function<void(uint64_t key, const ValidRequest&, ResponseSink&)>;

  explicit FakeFrontend(Script script = nullptr) : script_(std::move(script)) {}

  absl::StatusOr<uint64_t> Submit(ValidRequest request,
                                  std::shared_ptr<ResponseSink> sink) override {
    if (!submit_status.ok()) return submit_status;
    uint64_t key = 0;
    {
      absl::MutexLock lock(&mutex_);
      key = ++last_key_;
      requests_.push_back(request);
      sinks_[key] = sink;
    }
    if (script_) script_(key, request, *sink);
    return key;
  }
  absl::Status CheckRoom(const std::string& tenant) const override {
    return tenant == full_for ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  }
  void Cancel(uint64_t request) override {
    std::shared_ptr<ResponseSink> sink;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_.insert(request);
      sink = sinks_[request];
      sinks_.erase(request);
    }
    if (sink != nullptr) sink->OnEvent(RequestEnded{absl::CancelledError("cancelled")});
  }
  void StopChoice(uint64_t request, int32_t choice) override {
    absl::MutexLock lock(&mutex_);
    stopped_.insert({request, choice});
  }
  absl::StatusOr<RouterAudit> Audit() override { return RouterAudit{}; }
  RouterView View() const override {
    RouterView view;
    WorkerView worker{.role = Role::kDecode, .address = "127.0.0.1:1", .healthy = true};
    worker.hello.numerics_id = "n1";
    worker.hello.incarnation = 0xabc;
    worker.hello.num_blocks = 10;
    worker.status.blocks.free = 7;
    worker.status.blocks.cached = 3;
    view.workers.push_back(worker);
    return view;
  }
  bool Alive() const override { return alive; }
  bool Ready() const override { return ready; }

  std::vector<ValidRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  std::set<uint64_t> cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  std::set<std::pair<uint64_t, int32_t>> stopped() const {
    absl::MutexLock lock(&mutex_);
    return stopped_;
  }
  std::shared_ptr<ResponseSink> sink(uint64_t key) {
    absl::MutexLock lock(&mutex_);
    return sinks_[key];
  }
  bool WaitForCancel(uint64_t key) {
    absl::MutexLock lock(&mutex_);
    const auto seen = [this, key]()
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return cancelled_.count(key) > 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&seen), absl::Seconds(20));
  }

  std::optional<std::string> full_for;
  absl::Status submit_status;
  bool alive = true;
  bool ready = true;

 private:
  const Script script_;
  mutable absl::Mutex mutex_;
  uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ValidRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<ResponseSink>> sinks_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, int32_t>> stopped_ ABSL_GUARDED_BY(mutex_);
};

// One token as a worker would send it: logprob -0.5, the best two alternatives being the two ids
// of "the", and a digest that only the token decides.
inline TokenOutput FakeOutput(const ValidRequest& request, int32_t token, int32_t position) {
  TokenOutput output{.position = position, .token = token, .logprob = -0.5f};
  if (request.sampling.num_logprobs > 0) {
    output.top = {{FakeTokenizer::kTheA, -0.25f}, {FakeTokenizer::kTheB, -0.375f}};
    output.top.resize(static_cast<size_t>(std::min(request.sampling.num_logprobs, 2)));
  }
  output.logits_digest = 0xFEDCBA9876540000u + static_cast<uint64_t>(token);
  return output;
}

// A script: each choice says `text` byte by byte, then the end token; max_tokens cuts it.
inline FakeFrontend::Script SayBytes(std::string text) {
  return [text](uint64_t, const ValidRequest& request, ResponseSink& sink) {
    for (size_t p = 0; p < request.prompts.size(); ++p) {
      const auto length = static_cast<int32_t>(request.prompts[p].size());
      if (request.sampling.num_prompt_logprobs >= 0) {
        PromptScored scored{.prompt = static_cast<int32_t>(p)};
        for (int32_t i = 1; i < length; ++i) {
          scored.logprobs.push_back({.position = i,
                                     .token = request.prompts[p][i],
                                     .logprob = -0.125f * static_cast<float>(i),
                                     .rank = 1,
                                     .top = {{request.prompts[p][i], -0.125f * i}}});
        }
        sink.OnEvent(std::move(scored));
      }
      for (int32_t c = 0; c < request.num_choices && !request.score_only; ++c) {
        const int32_t choice = static_cast<int32_t>(p) * request.num_choices + c;
        for (int32_t i = 0; i < request.sampling.max_tokens; ++i) {
          const bool end = i >= static_cast<int32_t>(text.size());
          const int32_t token =
              end ? FakeTokenizer::kEnd : FakeTokenizer::Byte(static_cast<unsigned char>(text[i]));
          TokenOutput output = FakeOutput(request, token, length + i);
          output.finish = end                                    ? FinishReason::kStop
                          : i + 1 == request.sampling.max_tokens ? FinishReason::kLength
                                                                 : FinishReason::kNone;
          sink.OnEvent(ChoiceTokens{choice, {output}});
          if (end) break;
        }
      }
    }
    sink.OnEvent(RequestEnded{absl::OkStatus(), 3});
  };
}

}  // namespace baton
