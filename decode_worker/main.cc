#include "common/worker/worker_process.h"
#include "decode_worker/program.h"

int main(int argc, char** argv) { return baton::RunWorker<baton::DecodeProgram>(argc, argv); }
