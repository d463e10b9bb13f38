#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "absl/status/status.h"

namespace baton {

// One end of a connection that keeps the order of its bytes: a socket, or a simulated one. Never
// blocks. Destruction closes it.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // As readv and sendmsg: the number of bytes moved, 0 from Read when the peer closed, or -1 with
  // errno; EAGAIN when nothing can be moved now.
  virtual ssize_t Read(const iovec* parts, int num_parts) = 0;
  virtual ssize_t Write(const iovec* parts, int num_parts) = 0;

  // Of a connection that was opened here, once it can be read or written: whether it stands.
  virtual absl::Status ConnectResult() = 0;

  // Of a stream that holds bytes of its own. HasUnread: Read may give some that the kernel knows
  // nothing of. HasUnsent: what Write has taken waits for room; any Write, also of nothing, goes on
  // with it. AwaitsPeer: Write takes nothing before something has come.
  virtual bool HasUnread() const { return false; }
  virtual bool HasUnsent() const { return false; }
  virtual bool AwaitsPeer() const { return false; }

  // What the kernel calls it; -1 if it is none of the kernel's.
  virtual int fd() const = 0;
};

}  // namespace baton
