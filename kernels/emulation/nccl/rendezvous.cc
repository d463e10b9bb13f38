#include "kernels/emulation/nccl/rendezvous.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "kernels/emulation/nccl/nccl_options.h"

namespace baton::emulation::nccl {
namespace {

constexpr char kMagic[8] = {'e', 'm', 'u', 'n', 'c', 'c', 'l', '1'};
constexpr size_t kSecretBytes = 16;

std::string SecretOf(const ncclUniqueId& id) {
  return {id.internal + sizeof(kMagic), kSecretBytes};
}

// The rest of an id, so that a part of one is not taken for it.
void FillRest(ncclUniqueId& id) {
  uint64_t seed;
  std::memcpy(&seed, id.internal + sizeof(kMagic), sizeof(seed));
  Random random(seed);
  for (size_t i = sizeof(kMagic) + kSecretBytes; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(random.Next());
  }
}

std::pair<sockaddr_un, socklen_t> AddressOf(const ncclUniqueId& id) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = "baton-nccl-" + SecretOf(id);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // Abstract: begins with a zero.
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

// Where this process receives ranks, until CloseRendezvous().
struct Place {
  int listener;
  std::thread thread;
};
struct Places {
  std::mutex mutex;
  std::map<std::string, Place> by_secret;
};
Places& ThePlaces() {
  static auto* const places = new Places;
  return *places;
}

struct Guest {
  int socket;
  std::optional<Hello> hello;
};

void Refuse(int socket, const std::string& why) {
  send(socket, why.data(), why.size(), MSG_NOSIGNAL);
}

void GiveSocket(int guest, int socket) {
  char byte = 1;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &socket, sizeof(int));
  sendmsg(guest, &message, MSG_NOSIGNAL);
}

// Why these two do not make a pair; empty: they do.
std::string WhyNot(const Hello& a, const Hello& b) {
  if (a.rank == b.rank) return "two ranks " + std::to_string(a.rank);
  if (a.version != b.version) {
    return "rank " + std::to_string(a.rank) + " has version " + std::to_string(a.version) +
           ", rank " + std::to_string(b.rank) + " version " + std::to_string(b.version);
  }
  if (a.process == b.process && a.device == b.device && !(a.one_device && b.one_device)) {
    return "duplicate GPU: ranks 0 and 1 are both on device " + std::to_string(a.device);
  }
  return "";
}

void Introduce(const std::vector<Guest>& guests) {
  const std::string why_not = WhyNot(*guests[0].hello, *guests[1].hello);
  if (!why_not.empty()) {
    for (const Guest& guest : guests) Refuse(guest.socket, why_not);
    return;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  for (int i = 0; i < 2; ++i) {
    GiveSocket(guests[i].socket, ends[i]);
    close(ends[i]);
  }
}

// False: it has gone.
bool ReadHello(Guest& guest) {
  Hello hello;
  const ssize_t n = recv(guest.socket, &hello, sizeof(hello), MSG_DONTWAIT);
  if (n != sizeof(hello)) return false;
  guest.hello = hello;
  return true;
}

bool BothAreHere(const std::vector<Guest>& guests) {
  return guests.size() == 2 && guests[0].hello.has_value() && guests[1].hello.has_value();
}

void Receive(int listener) {
  std::vector<Guest> guests;
  while (!BothAreHere(guests)) {
    const short events = guests.size() < 2 ? POLLIN : 0;
    std::vector<pollfd> polled = {{listener, events, 0}};
    for (const Guest& guest : guests) polled.push_back({guest.socket, POLLIN, 0});
    poll(polled.data(), polled.size(), -1);
    for (size_t i = guests.size(); i > 0; --i) {
      if (polled[i].revents == 0 || ReadHello(guests[i - 1])) continue;
      close(guests[i - 1].socket);
      guests.erase(guests.begin() + static_cast<ptrdiff_t>(i) - 1);
    }
    if (polled[0].revents == 0) continue;
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) break;  // Closed.
    guests.push_back({.socket = socket});
  }
  if (BothAreHere(guests)) Introduce(guests);
  shutdown(listener, SHUT_RDWR);  // A third one is refused.
  for (const Guest& guest : guests) close(guest.socket);
}

}  // namespace

ncclResult_t OpenRendezvous(ncclUniqueId* id) {
  std::memcpy(id->internal, kMagic, sizeof(kMagic));
  if (getrandom(id->internal + sizeof(kMagic), kSecretBytes, 0) != kSecretBytes) {
    return ncclSystemError;
  }
  FillRest(*id);
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto [address, length] = AddressOf(*id);
  if (listener < 0 || bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener, 2) != 0) {
    if (listener >= 0) close(listener);
    return ncclSystemError;
  }
  const std::lock_guard lock(ThePlaces().mutex);
  ThePlaces().by_secret[SecretOf(*id)] = {listener, std::thread(Receive, listener)};
  return ncclSuccess;
}

void CloseRendezvous(const ncclUniqueId& id) {
  std::unique_lock lock(ThePlaces().mutex);
  auto node = ThePlaces().by_secret.extract(SecretOf(id));
  lock.unlock();
  if (node.empty()) return;
  shutdown(node.mapped().listener, SHUT_RDWR);
  node.mapped().thread.join();
  close(node.mapped().listener);
}

bool IsValid(const ncclUniqueId& id) {
  ncclUniqueId expected = id;
  FillRest(expected);
  return std::memcmp(id.internal, kMagic, sizeof(kMagic)) == 0 &&
         std::memcmp(&id, &expected, sizeof(id)) == 0;
}

int ConnectTo(const ncclUniqueId& id) {
  const int place = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto [address, length] = AddressOf(id);
  if (place < 0) return -1;
  if (connect(place, reinterpret_cast<const sockaddr*>(&address), length) == 0) return place;
  close(place);
  return -1;
}

int TakeConnection(int place, std::string& refusal) {
  char bytes[256];
  iovec data = {bytes, sizeof(bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(place, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr) {
    refusal = n > 0 ? std::string(bytes, static_cast<size_t>(n)) : "the process of the id is gone";
    return -1;
  }
  int socket;
  std::memcpy(&socket, CMSG_DATA(header), sizeof(int));
  return socket;
}

}  // namespace baton::emulation::nccl
