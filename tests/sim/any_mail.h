#pragma once

#include "common/node/worker_mail.h"

namespace baton::sim {

// On its way to a worker of either kind.
using AnyWorkerMail = WorkerMail<DecodeOpened, RebindAsked, PrefillOpened, SendAsked>;

}  // namespace baton::sim
