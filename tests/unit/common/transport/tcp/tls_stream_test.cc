#include "common/transport/tcp/tls_stream.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

namespace baton {
namespace {

constexpr TlsPair kPair{.sender = 7, .receiver = 9};
const PairKey kKey = {1, 2, 3};

// One direction between two streams.
struct Wire {
  std::string bytes;
  size_t room = 1 << 20;      // Of what nobody has read.
  size_t most_at_once = 1 << 20;
  bool closed = false;
};

class WireStream : public ByteStream {
 public:
  WireStream(Wire* in, Wire* out) : in_(in), out_(out) {}
  ~WireStream() override { out_->closed = true; }

  ssize_t Read(const iovec* parts, int) override {
    const size_t n = std::min({parts->iov_len, in_->bytes.size(), in_->most_at_once});
    if (n == 0) return in_->closed ? 0 : WouldBlock();
    std::memcpy(parts->iov_base, in_->bytes.data(), n);
    in_->bytes.erase(0, n);
    return static_cast<ssize_t>(n);
  }
  ssize_t Write(const iovec* parts, int) override {
    const size_t room = out_->room - std::min(out_->room, out_->bytes.size());
    const size_t n = std::min({parts->iov_len, room, out_->most_at_once});
    if (n == 0) return WouldBlock();
    out_->bytes.append(static_cast<const char*>(parts->iov_base), n);
    return static_cast<ssize_t>(n);
  }
  absl::Status ConnectResult() override { return absl::OkStatus(); }
  int fd() const override { return -1; }

 private:
  static ssize_t WouldBlock() {
    errno = EAGAIN;
    return -1;
  }
  Wire* const in_;
  Wire* const out_;
};

class TlsStreamTest : public ::testing::Test {
 protected:
  void SetUp() override { Connect(kKey); }

  void Connect(const PairKey& key, const Wire& wire = {}) {
    sender_.reset();
    receiver_.reset();
    up_ = down_ = wire;
    sender_ = TlsStream::ToReceiver(*context_, std::make_unique<WireStream>(&down_, &up_), kPair,
                                    key);
    receiver_ = TlsStream::FromSender(*context_, std::make_unique<WireStream>(&up_, &down_));
  }
  // What Read gives, up to 100 KB; its errno in error_.
  std::string Read(ByteStream& from) {
    std::string text(100'000, '\0');
    const iovec part{text.data(), text.size()};
    const ssize_t n = from.Read(&part, 1);
    error_ = n < 0 ? errno : 0;
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  size_t Write(ByteStream& to, const std::string& text) {
    const iovec part{const_cast<char*>(text.data()), text.size()};
    const ssize_t n = to.Write(&part, 1);
    error_ = n < 0 ? errno : 0;
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  void ShakeHands() {
    for (int i = 0; i < 10; ++i) {
      Write(*sender_, "");
      Read(*receiver_);
      Read(*sender_);
    }
    ASSERT_EQ(error_, EAGAIN);
    ASSERT_FALSE(sender_->AwaitsPeer() || receiver_->AwaitsPeer());
  }

  Wire up_;    // To the receiver.
  Wire down_;  // To the sender.
  const std::unique_ptr<TlsStreamContext> context_ =
      *TlsStreamContext::Create([](const TlsPair& pair) -> std::optional<PairKey> {
        if (pair.receiver != kPair.receiver) return std::nullopt;
        return kKey;
      });
  std::unique_ptr<ByteStream> sender_;
  std::unique_ptr<ByteStream> receiver_;
  int error_ = 0;
};

TEST_F(TlsStreamTest, BytesArriveInOrderHoweverTheyAreCut) {
  for (const size_t most : {1, 2, 7, 1000, 1 << 20}) {
    Connect(kKey, {.room = most * 2, .most_at_once = most});
    std::string sent, got;
    for (int i = 0; i < 200'000 && got.size() < 5000; ++i) {
      if (sent.size() < 5000) {
        const std::string next(100, static_cast<char>('a' + i % 26));
        sent.append(next, 0, Write(*sender_, next));
      } else {
        Write(*sender_, "");
      }
      Read(*sender_);
      got += Read(*receiver_);
      if (receiver_->HasUnsent()) Write(*receiver_, "");
    }
    EXPECT_EQ(got, sent) << most;
    EXPECT_GE(got.size(), 5000u);
  }
}

TEST_F(TlsStreamTest, DamageIsNotTakenForAWrongKey) {
  for (const bool up : {true, false}) {
    Connect(kKey);
    ShakeHands();
    ByteStream& from = up ? *sender_ : *receiver_;
    ByteStream& to = up ? *receiver_ : *sender_;
    Wire& wire = up ? up_ : down_;
    Write(from, "first");
    Write(from, "second");
    wire.bytes.back() ^= 1;
    EXPECT_EQ(Read(to), "first");
    EXPECT_EQ(Read(to), "");
    EXPECT_EQ(error_, EBADMSG) << up;
    EXPECT_EQ(Write(to, "x"), 0u);
    EXPECT_EQ(error_, EBADMSG) << up;
  }
}

TEST_F(TlsStreamTest, AWrongKeyEndsTheHandshakeOnBothSides) {
  PairKey wrong = kKey;
  wrong[31] ^= 1;
  Connect(wrong);
  Write(*sender_, "x");
  Read(*receiver_);
  EXPECT_EQ(error_, EKEYREJECTED);
  Read(*sender_);
  EXPECT_EQ(error_, EKEYREJECTED);
}

TEST_F(TlsStreamTest, APeerThatClosesIsToldOfBehindWhatItSent) {
  ShakeHands();
  Write(*sender_, "last");
  sender_.reset();
  EXPECT_EQ(Read(*receiver_), "last");
  EXPECT_EQ(Read(*receiver_), "");
  EXPECT_EQ(error_, 0);
}

// A sender that has the key, and that says what no sender of ours says.
class RawSender {
 public:
  explicit RawSender(Wire* up) : up_(up), context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_psk_use_session_callback(context_, UseKey);
    ssl_ = SSL_new(context_);
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl_);
  }
  ~RawSender() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  void ShakeHands(Wire* down) {
    SSL_do_handshake(ssl_);
    BIO_write(SSL_get_rbio(ssl_), down->bytes.data(), static_cast<int>(down->bytes.size()));
    down->bytes.clear();
    SSL_do_handshake(ssl_);
    Send();
  }
  void AskForNewKeys(int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(SSL_key_update(ssl_, SSL_KEY_UPDATE_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(ssl_), 1);
    }
    Send();
  }
  void Say(const std::string& text) {
    ASSERT_EQ(SSL_write(ssl_, text.data(), static_cast<int>(text.size())), std::ssize(text));
    Send();
  }

 private:
  static int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* size,
                    SSL_SESSION** session) {
    static const std::string name = "00000000000000070000000000000009";
    *id = reinterpret_cast<const unsigned char*>(name.data());
    *size = name.size();
    *session = SSL_SESSION_new();
    const unsigned char suite[] = {0x13, 0x01};
    SSL_SESSION_set1_master_key(*session, kKey.data(), kKey.size());
    SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, suite));
    SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
    return 1;
  }
  void Send() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(SSL_get_wbio(ssl_), &data);
    up_->bytes.append(data, static_cast<size_t>(size));
    BIO_reset(SSL_get_wbio(ssl_));
  }

  Wire* const up_;
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
};

TEST_F(TlsStreamTest, NewKeysOneAfterAnotherLeaveOthersTheirTurn) {
  RawSender raw(&up_);
  raw.ShakeHands(&down_);
  Read(*receiver_);
  raw.ShakeHands(&down_);
  raw.AskForNewKeys(100);
  raw.Say("hello");
  int turns = 0;
  std::string got;
  do {
    got += Read(*receiver_);
    ASSERT_TRUE(got == "hello" || error_ == EAGAIN) << error_;
    ++turns;
  } while (got.empty() && (receiver_->HasUnread() || !up_.bytes.empty()));
  EXPECT_EQ(got, "hello");
  EXPECT_GE(turns, 100);
}

TEST_F(TlsStreamTest, APeerThatAsksForNewKeysAndReadsNothingIsCut) {
  RawSender raw(&up_);
  raw.ShakeHands(&down_);
  Read(*receiver_);
  raw.ShakeHands(&down_);
  down_.room = 0;
  int asked = 0;
  for (error_ = EAGAIN; error_ == EAGAIN && asked < 100'000; asked += 100) {
    raw.AskForNewKeys(100);
    do {
      Read(*receiver_);
    } while (error_ == EAGAIN && (receiver_->HasUnread() || !up_.bytes.empty()));
  }
  EXPECT_LT(asked, 100'000);
  EXPECT_EQ(error_, EBADMSG);
}

}  // namespace
}  // namespace baton
