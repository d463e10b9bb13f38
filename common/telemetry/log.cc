#include "common/telemetry/log.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"

namespace baton {
namespace {

constexpr size_t kMaxWaitingLines = 4096;
constexpr std::chrono::seconds kLastLinesLimit(2);
constexpr int kAbortLimitMs = 200;  // What is broken ends soon all the same.

// A line that cannot be written (a full disk) is dropped.
void WriteLine(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written >= 0) {
      line.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd until_writable{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&until_writable, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

// Between those who log and the thread that writes; outlives the LogThread if that thread hangs.
class LogThread::Ring {
 public:
  void Push(std::string line) {
    {
      std::lock_guard lock(mutex_);
      // The thread's own line tells how many were dropped, so it is not dropped.
      const bool is_own = std::this_thread::get_id() == writer_;
      if (lines_.size() >= kMaxWaitingLines && !is_own) {
        ++num_dropped_;
        return;
      }
      lines_.push_back(std::move(line));
    }
    changed_.notify_all();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    writer_ = std::this_thread::get_id();
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || !lines_.empty() || num_dropped_ > 0; });
      if (lines_.empty() && num_dropped_ == 0) return;
      const int64_t num_dropped = lines_.empty() ? std::exchange(num_dropped_, 0) : 0;
      std::string line;
      if (!lines_.empty()) {
        line = std::move(lines_.front());
        lines_.pop_front();
      }
      is_writing_ = true;
      lock.unlock();
      if (num_dropped > 0) {
        Log(LogLevel::kWarning, "the log was not read: lines are missing",
            {{"lines", num_dropped}});
      } else {
        WriteLine(line);
      }
      lock.lock();
      is_writing_ = false;
      changed_.notify_all();
    }
  }

  void Stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  // False if somebody does not read them.
  bool AwaitWritten(std::chrono::seconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return IsWritten(); });
  }

  // In abort, whose thread may stand anywhere, so it waits for no lock.
  static void AwaitLastLines() {
    const Ring* const ring = live;
    constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 1'000'000};
    for (int ms = 0; ring != nullptr && ms < kAbortLimitMs && !ring->SeemsWritten(); ++ms) {
      nanosleep(&kPause, nullptr);
    }
  }

  static inline std::atomic<const Ring*> live = nullptr;

 private:
  bool SeemsWritten() const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && IsWritten();
  }
  bool IsWritten() const { return lines_.empty() && num_dropped_ == 0 && !is_writing_; }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  int64_t num_dropped_ = 0;
  std::thread::id writer_;
  bool is_writing_ = false;
  bool stopped_ = false;
};

// Writes a line, or gives it to the thread that does.
class LogSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::shared_ptr<LogThread::Ring> ring() {
    std::lock_guard lock(mutex_);
    return ring_;
  }
  void SetRing(std::shared_ptr<LogThread::Ring> ring) {
    std::lock_guard lock(mutex_);
    ring_ = std::move(ring);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (ring_ != nullptr) return ring_->Push(std::string(line.data(), line.size()));
    WriteLine({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  std::shared_ptr<LogThread::Ring> ring_;
};

namespace {

// Both are made on first use and never destroyed: threads may log until the very end.
const std::shared_ptr<LogSink>& Sink() {
  static const auto* const sink = new std::shared_ptr<LogSink>(std::make_shared<LogSink>());
  return *sink;
}

spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("baton", Sink());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    made->set_error_handler([](const std::string&) {});  // The default one prints.
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

bool NeedsQuotes(absl::string_view value) {
  return value.empty() || std::any_of(value.begin(), value.end(), [](unsigned char c) {
           return c <= ' ' || c == '"' || c == '\\' || c == '=' || c >= 0x7f;
         });
}

}  // namespace

bool ParseLogLevel(absl::string_view text, LogLevel* level) {
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void SetLogLevel(LogLevel level) { Logger().set_level(LevelOf(level)); }

LogThread::LogThread() : ring_(std::make_shared<Ring>()) {
  thread_ = std::thread([ring = ring_] {
    pthread_setname_np(pthread_self(), "log");
    ring->Run();
  });
  Sink()->SetRing(ring_);
  Ring::live = ring_.get();
  struct sigaction action{};
  action.sa_handler = [](int) { Ring::AwaitLastLines(); };
  action.sa_flags = SA_RESETHAND;  // Then abort ends the process.
  sigaction(SIGABRT, &action, nullptr);
}

LogThread::~LogThread() {
  // Whoever does not read the log does not keep the process: the rest is lost with the thread.
  if (!ring_->AwaitWritten(kLastLinesLimit)) {
    thread_.detach();
    return;
  }
  Sink()->SetRing(nullptr);
  Ring::live = nullptr;
  ring_->Stop();
  thread_.join();
}

void FlushLog() {
  if (const auto ring = Sink()->ring()) ring->AwaitWritten(kLastLinesLimit);
}

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) {
  spdlog::logger& logger = Logger();
  if (!logger.should_log(LevelOf(level))) return;
  const std::string line = FormatLogLine(event, fields);
  logger.log(LevelOf(level), spdlog::string_view_t(line.data(), line.size()));
}

std::string FormatLogLine(absl::string_view event, std::initializer_list<LogField> fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=");
    if (NeedsQuotes(field.value)) {
      absl::StrAppend(&line, "\"", absl::Utf8SafeCHexEscape(field.value), "\"");
    } else {
      absl::StrAppend(&line, field.value);
    }
  }
  return line;
}

}  // namespace baton
