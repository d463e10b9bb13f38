#include "common/rpc/silence.h"

namespace baton {

void Silence::OnRead(bool ok) {
  sweeps_ = 0;
  is_unread_ = !ok;
}

bool Silence::Sweep() {
  const int num_allowed = is_unread_ ? 1 : kMaxSilentSweeps;
  return sweeps_.fetch_add(1) + 1 > num_allowed;
}

}  // namespace baton
