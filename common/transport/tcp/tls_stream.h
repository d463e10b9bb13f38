#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/transport/kv_transport.h"
#include "common/transport/tcp/byte_stream.h"

namespace baton {

// Who speaks to whom: the identity of the pre-shared key, which is the pair's.
struct TlsPair {
  Incarnation sender = 0;
  Incarnation receiver = 0;
};

// What streams of one process share: TLS 1.3 alone, AES-128-GCM, the pair key as external PSK with
// a fresh ECDHE for each connection; no certificates, tickets or early data.
class TlsStreamContext {
 public:
  // The key of a pair that asks to be let in; absent: it is not meant for this process.
  using KeyOf = std::function<std::optional<PairKey>(const TlsPair& pair)>;

  static absl::StatusOr<std::unique_ptr<TlsStreamContext>> Create(KeyOf key_of);

  SSL_CTX* get() const { return context_.get(); }
  const KeyOf& key_of() const { return key_of_; }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  explicit TlsStreamContext(KeyOf key_of) : key_of_(std::move(key_of)) {}

  const KeyOf key_of_;
  std::unique_ptr<SSL_CTX, Free> context_;
};

// A stream whose bytes are sealed before they go over another one. Failures beside those of the
// other stream: EKEYREJECTED, not the pair's key, or no handshake at all; ECONNABORTED, another
// process than the receiver answers; EBADMSG, something was damaged, or TLS itself has answers that
// the peer does not read. What Write has taken it holds a copy of, up to some records.
class TlsStream : public ByteStream {
 public:
  // The context outlives them.
  static std::unique_ptr<ByteStream> ToReceiver(const TlsStreamContext& context,
                                                std::unique_ptr<ByteStream> under,
                                                const TlsPair& pair, const PairKey& key);
  static std::unique_ptr<ByteStream> FromSender(const TlsStreamContext& context,
                                                std::unique_ptr<ByteStream> under);

  ssize_t Read(const iovec* parts, int num_parts) override;
  ssize_t Write(const iovec* parts, int num_parts) override;
  absl::Status ConnectResult() override { return under_->ConnectResult(); }
  int fd() const override { return under_->fd(); }
  bool HasUnread() const override;
  bool HasUnsent() const override { return sent_ < unsent_.size(); }
  bool AwaitsPeer() const override { return !HasUnsent() && !SSL_is_init_finished(ssl_.get()); }

 private:
  friend class TlsStreamContext;
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  TlsStream(const TlsStreamContext& context, std::unique_ptr<ByteStream> under);
  static int ReadUnder(BIO* bio, char* to, int size);
  static int WriteUnder(BIO* bio, const char* from, int size);
  static BIO_METHOD* Method();

  static int UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** id, size_t* id_size,
                    SSL_SESSION** session);
  static int FindKey(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session);

  // True: the handshake is over. False: errno says what is missing, EAGAIN or a failure.
  bool Established();
  // False: errno says why not all that is sealed has gone.
  bool Flush();
  ssize_t Fail();
  bool Seal(std::span<const std::byte> record);

  const TlsStreamContext& context_;
  const std::unique_ptr<ByteStream> under_;
  TlsPair pair_;    // Of a client,
  PairKey key_{};   // with its key.
  std::vector<char> unread_;  // From the other stream, from read_ to read_end_.
  size_t read_ = 0;
  size_t read_end_ = 0;
  int under_errno_ = 0;  // Of the other stream's last Read; 0 when it gave something.
  bool closed_ = false;  // By the peer, below TLS.
  bool was_established_ = false;
  bool failed_ = false;
  int why_ = 0;  // It did, as an errno.
  std::vector<char> unsent_;  // For the other stream, from sent_ on.
  size_t sent_ = 0;
  int64_t num_sealed_ = 0;  // Records under one key.
  std::unique_ptr<SSL, Free> ssl_;
};

}  // namespace baton
