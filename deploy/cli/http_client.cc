#include "deploy/cli/http_client.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "boost/asio/ip/address.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/host_name_verification.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "nlohmann/json.hpp"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr uint64_t kMaxBodyBytes = uint64_t{1} << 30;

struct HostPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostPort> ParseUrl(absl::string_view url) {
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "https://")) absl::ConsumePrefix(&rest, "http://");
  rest = rest.substr(0, rest.find('/'));
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 || colon + 1 == rest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", url, "\" is not of the form http://HOST:PORT or https://HOST:PORT"));
  }
  return HostPort{std::string(rest.substr(0, colon)), std::string(rest.substr(colon + 1))};
}

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(asio::io_context& io, const HttpRequest& request, HttpHandlers handlers)
      : resolver_(io), stream_(io), request_(request), handlers_(std::move(handlers)) {
    parser_.body_limit(kMaxBodyBytes);
    if (request_.trust != nullptr) tls_.emplace(stream_, *request_.trust);
  }

  void Start() {
    absl::StatusOr<HostPort> peer = ParseUrl(request_.url);
    if (!peer.ok()) return Finish(peer.status());
    host_ = peer->host;
    message_.method(request_.body.empty() ? http::verb::get : http::verb::post);
    message_.target(request_.target);
    message_.version(11);
    message_.set(http::field::host, absl::StrCat(peer->host, ":", peer->port));
    message_.set(http::field::connection, "close");
    if (!request_.api_key.empty()) {
      message_.set(http::field::authorization, absl::StrCat("Bearer ", request_.api_key));
    }
    if (!request_.body.empty()) message_.set(http::field::content_type, "application/json");
    message_.body() = request_.body;
    message_.prepare_payload();
    resolver_.async_resolve(peer->host, peer->port,
                            [self = shared_from_this()](error_code error, auto endpoints) {
                              if (error) return self->Fail(error, "resolving the name");
                              self->Connect(endpoints);
                            });
  }

 private:
  void Connect(const asio::ip::tcp::resolver::results_type& endpoints) {
    stream_.expires_after(request_.idle_timeout);
    stream_.async_connect(endpoints, [self = shared_from_this()](error_code error, auto) {
      if (error) return self->Fail(error, "connecting");
      error_code ignored;
      self->stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
      if (self->tls_.has_value()) return self->Handshake();
      self->Write();
    });
  }

  void Handshake() {
    error_code is_name;
    asio::ip::make_address(host_, is_name);
    // An address is not a name that a server could be asked for.
    if (is_name) SSL_set_tlsext_host_name(tls_->native_handle(), host_.c_str());
    tls_->set_verify_callback(asio::ssl::host_name_verification(host_));
    tls_->async_handshake(asio::ssl::stream_base::client,
                          [self = shared_from_this()](error_code error) {
                            if (error) return self->Fail(error, "making sure who it is (TLS)");
                            self->Write();
                          });
  }

  // Over TLS or not.
  template <typename Start>
  void Over(Start start) {
    if (tls_.has_value()) return start(*tls_);
    start(stream_);
  }

  void Write() {
    stream_.expires_after(request_.idle_timeout);
    Over([this](auto& stream) {
      http::async_write(stream, message_, [self = shared_from_this()](error_code error, size_t) {
        if (error) return self->Fail(error, "sending");
        self->Read();
      });
    });
  }

  void Read() {
    stream_.expires_after(request_.idle_timeout);
    Over([this](auto& stream) {
      http::async_read_some(stream, buffer_, parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              if (error) return self->Fail(error, "reading the answer");
                              self->Deliver();
                              if (self->parser_.is_done()) return self->Finish(self->Result());
                              self->Read();
                            });
    });
  }

  // Hands on what has arrived of a good body; an error's body is collected, it has the message.
  void Deliver() {
    if (!handlers_.on_body || !parser_.is_header_done()) return;
    if (parser_.get().result_int() / 100 != 2) return;
    const std::string piece = std::exchange(parser_.get().body(), "");
    if (!piece.empty()) handlers_.on_body(piece);
  }

  HttpResult Result() {
    return {.code = static_cast<int>(parser_.get().result_int()),
            .body = std::move(parser_.get().body())};
  }

  void Fail(error_code error, const char* what) {
    const std::string text =
        absl::StrCat(request_.url, request_.target, ": ", error.message(), " while ", what);
    Finish(error == beast::error::timeout ? absl::DeadlineExceededError(text)
                                          : absl::UnavailableError(text));
  }

  void Finish(absl::StatusOr<HttpResult> result) {
    error_code ignored;
    stream_.socket().close(ignored);
    handlers_.on_done(std::move(result));
  }

  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  std::optional<asio::ssl::stream<beast::tcp_stream&>> tls_;  // Over stream_, which has the timer.
  std::string host_;
  const HttpRequest request_;
  HttpHandlers handlers_;
  http::request<http::string_body> message_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
};

}  // namespace

absl::StatusOr<HttpsTrust> TrustCas(const std::string& file) {
  auto trust = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(trust->native_handle(), TLS1_2_VERSION);
  trust->set_verify_mode(asio::ssl::verify_peer);
  error_code error;
  if (file.empty()) {
    trust->set_default_verify_paths(error);
  } else {
    trust->load_verify_file(file, error);
  }
  if (!error) return trust;
  return absl::InvalidArgumentError(
      absl::StrCat("--ca ", file, ": ", error.message(),
                   "; name a file of the CAs, in PEM, that issued the server's certificate"));
}

void StartHttpCall(asio::io_context& io, const HttpRequest& request, HttpHandlers handlers) {
  std::make_shared<Call>(io, request, std::move(handlers))->Start();
}

absl::StatusOr<HttpResult> HttpCall(const HttpRequest& request,
                                    std::function<void(absl::string_view)> on_body) {
  asio::io_context io;
  absl::StatusOr<HttpResult> result = absl::InternalError("the call did not end");
  StartHttpCall(io, request,
                {.on_body = std::move(on_body),
                 .on_done = [&](absl::StatusOr<HttpResult> r) { result = std::move(r); }});
  io.run();
  return result;
}

std::string ErrorMessageOf(const HttpResult& result) {
  const nlohmann::json json = nlohmann::json::parse(result.body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const nlohmann::json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
  }
  return absl::StrCat("HTTP ", result.code, " ", result.body.substr(0, 200));
}

}  // namespace baton::cli
