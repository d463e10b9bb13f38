#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baton::http {

struct Header {
  std::string name;
  std::string value;
};

// A parsed request. HEAD arrives as GET (the answer's body is dropped on the way out).
struct Request {
  std::string method;  // "GET", "POST", ...
  std::string path;    // Percent-decoded, without the query.
  std::string query;   // As sent, without the '?'.
  std::vector<Header> headers;
  std::string body;       // Empty while `Authorize` looks at the request.
  std::string principal;  // Who asks, as `Authorize` found out; empty without it.

  // The first header of this name, in any case; empty if there is none.
  std::string_view Find(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers;  // Content-Length, Connection and Date are not among them.
  std::string body;
};

// {"error":{"message","type","param":null,"code":null}} with this status; `message` is plain
// ASCII without quotes, `type` an identifier.
Response ErrorResponse(int status, std::string_view type, std::string_view message);

// "Not Found" for 404, ...
std::string_view ReasonPhrase(int status);

// True if the names are equal in any case.
bool HeaderNameIs(std::string_view a, std::string_view b);

// Splits a request target into path and query and decodes %XX of the path. False if it is not an
// absolute path, or an escape is broken or stands for NUL.
bool ParseTarget(std::string_view target, std::string* path, std::string* query);

// True if a line of these ends without a CR. The first `checked` bytes, which were looked at
// before, are not looked at again.
bool HasBareLineFeed(std::string_view lines, size_t checked);

}  // namespace baton::http
