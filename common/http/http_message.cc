#include "common/http/http_message.h"

#include <algorithm>

namespace baton::http {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = Lower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

bool HeaderNameIs(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string_view Request::Find(std::string_view name) const {
  for (const Header& header : headers) {
    if (HeaderNameIs(header.name, name)) return header.value;
  }
  return {};
}

Response ErrorResponse(int status, std::string_view type, std::string_view message) {
  Response response{.status = status};
  response.body.append("{\"error\":{\"message\":\"").append(message);
  response.body.append("\",\"type\":\"").append(type);
  response.body.append("\",\"param\":null,\"code\":null}}");
  return response;
}

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

bool ParseTarget(std::string_view target, std::string* path, std::string* query) {
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  *query = mark == std::string_view::npos ? "" : std::string(target.substr(mark + 1));
  const std::string_view raw = target.substr(0, mark);
  path->clear();
  if (raw.empty() || raw[0] != '/') return false;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '%') {
      path->push_back(raw[i]);
      continue;
    }
    if (i + 2 >= raw.size()) return false;
    const int high = HexDigit(raw[i + 1]);
    const int low = HexDigit(raw[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
    path->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

bool HasBareLineFeed(std::string_view lines, size_t checked) {
  for (size_t at = lines.find('\n', checked); at != lines.npos; at = lines.find('\n', at + 1)) {
    if (at == 0 || lines[at - 1] != '\r') return true;
  }
  return false;
}

}  // namespace baton::http
