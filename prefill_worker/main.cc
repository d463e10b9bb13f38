#include "common/worker/worker_process.h"
#include "prefill_worker/program.h"

int main(int argc, char** argv) { return baton::RunWorker<baton::PrefillProgram>(argc, argv); }
