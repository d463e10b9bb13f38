#include "common/transport/tcp/tls_stream.h"

#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kRecordBytes = 16 << 10;   // The most that one may hold.
constexpr size_t kMaxUnsent = 256 << 10;    // Then the socket is asked first.
constexpr size_t kMostUnsent = 2 * kMaxUnsent;  // With what a peer makes TLS itself answer.
constexpr int64_t kRecordsPerKey = int64_t{1} << 23;  // AES-GCM is good for 2^24.5.
constexpr size_t kIdBytes = 32;                       // Two incarnations in hex.
constexpr unsigned char kAes128Gcm[] = {0x13, 0x01};

std::string IdOf(const TlsPair& pair) {
  return absl::StrCat(absl::Hex(pair.sender, absl::kZeroPad16),
                      absl::Hex(pair.receiver, absl::kZeroPad16));
}

std::optional<TlsPair> ParseId(absl::string_view id) {
  TlsPair pair;
  if (id.size() != kIdBytes || !absl::SimpleHexAtoi(id.substr(0, 16), &pair.sender) ||
      !absl::SimpleHexAtoi(id.substr(16), &pair.receiver)) {
    return std::nullopt;
  }
  return pair;
}

// What a call of Write has still to seal.
struct Parts {
  const iovec* parts;
  const iovec* const end;
  size_t offset = 0;  // In the first.

  // Up to a record. In place where one part holds it, else gathered.
  std::span<const std::byte> TakeRecord(std::span<std::byte, kRecordBytes> gathered) {
    if (parts < end && parts->iov_len - offset >= kRecordBytes) return Take(kRecordBytes);
    size_t have = 0;
    while (parts < end && have < kRecordBytes) {
      const auto taken = Take(kRecordBytes - have);
      std::ranges::copy(taken, gathered.begin() + static_cast<ptrdiff_t>(have));
      have += taken.size();
    }
    return gathered.first(have);
  }

 private:
  std::span<const std::byte> Take(size_t most) {
    const size_t n = std::min(most, parts->iov_len - offset);
    const std::span taken(static_cast<const std::byte*>(parts->iov_base) + offset, n);
    offset += n;
    if (offset == parts->iov_len) {
      ++parts;
      offset = 0;
    }
    return taken;
  }
};

SSL_SESSION* SessionOf(SSL* ssl, const PairKey& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128Gcm);
  BATON_CHECK(session != nullptr && cipher != nullptr);
  BATON_CHECK(SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1);
  BATON_CHECK(SSL_SESSION_set_cipher(session, cipher) == 1);
  BATON_CHECK(SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1);
  return session;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsStreamContext>> TlsStreamContext::Create(KeyOf key_of) {
  std::unique_ptr<TlsStreamContext> made(new TlsStreamContext(std::move(key_of)));
  made->context_.reset(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = made->context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1) {
    ERR_clear_error();
    return absl::InternalError("OpenSSL has no TLS 1.3 with AES-128-GCM");
  }
  // After each record that is not the peer's own bytes, it is the turn of other connections.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_use_session_callback(context, TlsStream::UseKey);
  SSL_CTX_set_psk_find_session_callback(context, TlsStream::FindKey);
  return made;
}

TlsStream::TlsStream(const TlsStreamContext& context, std::unique_ptr<ByteStream> under)
    : context_(context),
      under_(std::move(under)),
      unread_(kReadBytes),
      ssl_(SSL_new(context.get())) {
  BATON_CHECK(ssl_ != nullptr);
  BIO* const bio = BIO_new(Method());
  BATON_CHECK(bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);  // Which owns it.
  SSL_set_app_data(ssl_.get(), this);
}

std::unique_ptr<ByteStream> TlsStream::ToReceiver(const TlsStreamContext& context,
                                                  std::unique_ptr<ByteStream> under,
                                                  const TlsPair& pair, const PairKey& key) {
  std::unique_ptr<TlsStream> made(new TlsStream(context, std::move(under)));
  made->pair_ = pair;
  made->key_ = key;
  SSL_set_connect_state(made->ssl_.get());
  return made;
}

std::unique_ptr<ByteStream> TlsStream::FromSender(const TlsStreamContext& context,
                                                  std::unique_ptr<ByteStream> under) {
  std::unique_ptr<TlsStream> made(new TlsStream(context, std::move(under)));
  SSL_set_accept_state(made->ssl_.get());
  return made;
}

BIO_METHOD* TlsStream::Method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baton stream");
    BATON_CHECK(made != nullptr);
    BIO_meth_set_read(made, ReadUnder);
    BIO_meth_set_write(made, WriteUnder);
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long {
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return made;
  }();
  return method;
}

int TlsStream::ReadUnder(BIO* bio, char* to, int size) {
  auto* const self = static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (self->read_ == self->read_end_) {
    const iovec part{self->unread_.data(), self->unread_.size()};
    const ssize_t n = self->under_->Read(&part, 1);
    self->under_errno_ = n < 0 ? errno : 0;
    self->closed_ = n == 0;
    self->read_ = 0;
    self->read_end_ = static_cast<size_t>(std::max<ssize_t>(n, 0));
    if (n < 0) BIO_set_retry_read(bio);
    if (n <= 0) return static_cast<int>(n);
  }
  const size_t n = std::min(static_cast<size_t>(size), self->read_end_ - self->read_);
  std::memcpy(to, self->unread_.data() + self->read_, n);
  self->read_ += n;
  return static_cast<int>(n);
}

int TlsStream::WriteUnder(BIO* bio, const char* from, int size) {
  auto* const self = static_cast<TlsStream*>(BIO_get_data(bio));
  if (self->unsent_.size() - self->sent_ + static_cast<size_t>(size) > kMostUnsent) return -1;
  self->unsent_.insert(self->unsent_.end(), from, from + size);
  return size;
}

int TlsStream::UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** id, size_t* id_size,
                      SSL_SESSION** session) {
  auto* const self = static_cast<TlsStream*>(SSL_get_app_data(ssl));
  *session = nullptr;
  *id = nullptr;
  *id_size = 0;
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  static thread_local std::string name;  // OpenSSL copies it before it calls anything else.
  name = IdOf(self->pair_);
  *id = reinterpret_cast<const unsigned char*>(name.data());
  *id_size = name.size();
  *session = SessionOf(ssl, self->key_);
  return 1;
}

int TlsStream::FindKey(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
  auto* const self = static_cast<TlsStream*>(SSL_get_app_data(ssl));
  *session = nullptr;
  const auto pair = ParseId({reinterpret_cast<const char*>(id), id_size});
  if (!pair.has_value()) return 1;
  const std::optional<PairKey> key = self->context_.key_of()(*pair);
  if (key.has_value()) *session = SessionOf(ssl, *key);
  return 1;
}

ssize_t TlsStream::Fail() {
  if (!std::exchange(failed_, true)) {
    // What a receiver says that has found the identity and not the key.
    const bool wrong_key = ERR_GET_REASON(ERR_peek_error()) == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER;
    why_ = was_established_                         ? EBADMSG
           : wrong_key || SSL_is_server(ssl_.get()) ? EKEYREJECTED
                                                    : ECONNABORTED;
    ERR_clear_error();
    (void)Flush();  // The alert.
  }
  errno = why_;
  return -1;
}

bool TlsStream::Established() {
  if (SSL_is_init_finished(ssl_.get())) return true;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return was_established_ = true;
  const int error = SSL_get_error(ssl_.get(), result);
  if (error != SSL_ERROR_WANT_READ && !closed_) {
    Fail();
  } else {
    errno = closed_ ? 0 : under_errno_;
  }
  return false;
}

bool TlsStream::Flush() {
  while (HasUnsent()) {
    const iovec part{unsent_.data() + sent_, unsent_.size() - sent_};
    const ssize_t n = under_->Write(&part, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent_ += static_cast<size_t>(n);
  }
  unsent_.clear();
  sent_ = 0;
  return true;
}

bool TlsStream::HasUnread() const {
  return !failed_ && (read_ < read_end_ || SSL_pending(ssl_.get()) > 0);
}

ssize_t TlsStream::Read(const iovec* parts, int num_parts) {
  if (failed_) return Fail();
  const bool established = Established();
  const int handshake_errno = errno;
  // An answer of the handshake. What the socket does not take waits for HasUnsent's turn.
  if (HasUnsent() && !Flush() && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  if (!established) {
    errno = handshake_errno;
    return errno == 0 ? 0 : -1;
  }
  ssize_t total = 0;
  ERR_clear_error();
  for (int i = 0; i < num_parts; ++i) {
    for (size_t have = 0; have < parts[i].iov_len;) {
      size_t n = 0;
      const int result = SSL_read_ex(ssl_.get(), static_cast<char*>(parts[i].iov_base) + have,
                                     parts[i].iov_len - have, &n);
      if (result == 1) {
        have += n;
        total += static_cast<ssize_t>(n);
        continue;
      }
      if (total > 0) return total;  // The same again comes with the next call.
      const int error = SSL_get_error(ssl_.get(), result);
      if (error == SSL_ERROR_ZERO_RETURN) return 0;
      if (error == SSL_ERROR_WANT_READ) {
        errno = under_errno_ == 0 ? EAGAIN : under_errno_;  // 0: HasUnread may tell of more.
        return -1;
      }
      return closed_ ? 0 : Fail();
    }
  }
  return total;
}

bool TlsStream::Seal(std::span<const std::byte> record) {
  if (num_sealed_++ == kRecordsPerKey) {
    num_sealed_ = 1;
    BATON_CHECK(SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
  }
  size_t n = 0;
  ERR_clear_error();
  // The BIO takes everything, so nothing can be left to try again.
  return SSL_write_ex(ssl_.get(), record.data(), record.size(), &n) == 1;
}

ssize_t TlsStream::Write(const iovec* parts, int num_parts) {
  if (failed_) return Fail();
  if (!Flush()) return -1;
  if (!Established()) {
    const int why = errno;
    if (!failed_ && !Flush()) return -1;
    errno = why == 0 ? EPIPE : why;
    return -1;
  }
  ssize_t total = 0;
  Parts left{.parts = parts, .end = parts + num_parts};
  std::array<std::byte, kRecordBytes> gathered;
  while (unsent_.size() < kMaxUnsent) {
    const std::span<const std::byte> record = left.TakeRecord(gathered);
    if (record.empty()) break;
    if (!Seal(record)) return Fail();
    total += static_cast<ssize_t>(record.size());
  }
  if (!Flush() && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  return total;
}

}  // namespace baton
