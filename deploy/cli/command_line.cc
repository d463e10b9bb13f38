#include "deploy/cli/command_line.h"

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/process/command_line.h"
#include "deploy/cli/audit.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/certs.h"
#include "deploy/cli/complete.h"
#include "deploy/cli/doctor.h"
#include "deploy/cli/down.h"
#include "deploy/cli/keys.h"
#include "deploy/cli/restart.h"
#include "deploy/cli/status.h"
#include "deploy/cli/up.h"

namespace baton::cli {
namespace {

using Command = std::function<int()>;

void AddDir(CLI::App* app, std::string& dir) {
  app->add_option("--dir", dir, "Folder of the cluster: state.json and logs/")
      ->capture_default_str();
}

// Returns --tls-dir.
CLI::Option* AddRemote(CLI::App* app, RemoteOptions& o) {
  app->add_option("--router", o.router,
                  "HOST:PORT of a router's --admin-port: ask the cluster there, not that of --dir");
  return app->add_option("--tls-dir", o.tls_dir,
                         "Folder of an admin's certificate (`baton certs issue`)");
}

void AddApiServer(CLI::App* app, ApiServerOptions& o) {
  AddDir(app, o.dir);
  app->add_option("--url", o.url, "Ask this server, e.g. http://127.0.0.1:8000, not that of --dir");
  app->add_option("--api-key-file", o.api_key_file, "File with the API key to send");
  app->add_option("--ca", o.ca,
                  "File of the CAs that know an https server by its name (default: the system's)");
}

void AddPorts(CLI::App* app, UpOptions& o) {
  app->add_option("--http", o.http_port,
                  "HTTP port, 0 = any free (default: 8000, or any free if that is taken)");
  app->add_option("--grpc", o.grpc_port,
                  "gRPC port, 0 = any free (default: 8001, or any free if that is taken)");
  app->add_option("--ops", o.ops_port,
                  "Port of health, readiness and metrics, 0 = any free (default: 9090, or any free "
                  "if that is taken or --http is 0)");
}

void AddUp(CLI::App& root, UpOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand(
      "up",
      "Start a whole cluster on this machine. Exit code: 0 it serves or was stopped, 2 it does not "
      "start with these options, and one line says what to change, 1 it failed otherwise; then "
      "nothing of it is left");
  AddDir(app, o.dir);
  app->add_option("--model", o.model,
                  "Model folder in Hugging Face layout (default: deploy/models/tiny-kjv)");
  app->add_option("--prefill", o.prefill, "Prefill workers")->capture_default_str();
  app->add_option("--decode", o.decode, "Decode workers")->capture_default_str();
  AddPorts(app, o);
  app->add_flag("--detach", o.detach, "Return when a token has come end to end; run in background");
  app->add_flag("--tls", o.tls, "Mutual TLS between the servers, by `baton certs` in DIR/certs");
  app->add_option("--start-timeout-s", o.start_timeout_s,
                  "Limit of each stage of the start, seconds")->capture_default_str();
  app->add_flag("!--no-restart", o.restart,
      "Do not start a server again that ended: crashed, or stopped by an operator's SIGTERM "
      "(`baton restart`). Without it a server that keeps crashing is tried again, at last "
      "every 30 s");
  const std::string workers = "Workers (handed on)";
  app->add_option("--device", o.device,
                  "auto, cpu, cuda or cuda:N (default: auto, a GPU if there is one)")
      ->group(workers);
  app->add_option("--gpu-memory-fraction", o.gpu_memory_fraction,
                  "Of a GPU's memory, for all workers together")
      ->group(workers)
      ->capture_default_str();
  app->add_option("--gpu-graphs", o.gpu_graphs,
                  "on or off: decode steps as graphs on a GPU (default: on)")
      ->group(workers);
  app->add_option("--tp", o.tp,
                  "Ranks of each worker (tensor parallel): 1, 2, 4 or 8 (default: 1)")
      ->group(workers);
  app->add_option("--tp-prefill", o.tp_prefill, "Of the prefill workers (default: --tp)")
      ->group(workers);
  app->add_option("--tp-decode", o.tp_decode, "Of the decode workers (default: --tp)")
      ->group(workers);
  app->add_option("--kv-transport", o.kv_transport,
                  "What carries K/V between GPUs: auto (NCCL where both ends can, else TCP), "
                  "tcp, or nccl (auto, with a warning where it cannot)")
      ->group(workers);
  app->add_option("--compute-dtype", o.compute_dtype, "f32, bf16, f16 (GPUs) or auto")
      ->group(workers);
  app->add_option("--kv-dtype", o.kv_dtype, "Type of keys and values in the cache")->group(workers);
  app->add_option("--kernels", o.kernels, "Kernel set (default: by CPU family)")->group(workers);
  app->add_option("--block-size", o.block_size, "Tokens per KV block")->group(workers);
  app->add_option("--num-blocks", o.num_blocks, "KV blocks per worker")->group(workers);
  app->add_option("--chunk-tokens", o.chunk_tokens, "Prompt tokens per step")->group(workers);
  app->add_option("--max-batch-sequences", o.max_batch_sequences, "Most sequences of one step")
      ->group(workers);
  app->add_option("--preemption", o.preemption, "auto, recompute or swap")->group(workers);
  app->add_option("--finish-together", o.finish_together,
                  "Prompts whose first tokens wait for each other (default: 8; 0 = none)")
      ->group(workers);
  app->add_option("--steps-in-flight", o.steps_in_flight,
                  "2: a decode step starts while the one before it runs; 1: after it (default: 2)")
      ->group(workers);
  app->add_option("--threads", o.threads,
                  "Threads per worker (default: cores / workers of its role)")
      ->group(workers);
  const std::string router = "Router (handed on)";
  app->add_option("--policy", o.policy, "prefix_affinity or least_loaded")->group(router);
  app->add_option("--served-model-name", o.served_model_name, "Model name in the API")
      ->group(router);
  app->add_option("--max-model-len", o.max_model_len, "Tokens of prompt and answer together")
      ->group(router);
  app->callback([&] { command = [&o] { return Up(o); }; });
}

void AddDown(CLI::App& root, std::string& dir, Command& command) {
  CLI::App* app = root.add_subcommand("down", "Drain and stop the cluster");
  AddDir(app, dir);
  app->callback([&] { command = [&dir] { return Down(dir); }; });
}

void AddRestart(CLI::App& root, RestartOptions& o, Command& command) {
  CLI::App* app =
      root.add_subcommand("restart", "Restart the workers one by one: drain, stop, await the next");
  AddDir(app, o.dir);
  CLI::Option* role = app->add_option("--role", o.role, "Only the prefill or the decode workers")
                          ->check(CLI::IsMember({"prefill", "decode"}));
  app->add_option("--index", o.index, "Only this one of --role, as in decode-INDEX")
      ->needs(role)
      ->check(CLI::NonNegativeNumber);
  app->add_option("--timeout-s", o.timeout_s, "For each worker to be healthy again, seconds")
      ->check(CLI::Range(1, 24 * 3600))
      ->capture_default_str();
  app->callback([&] { command = [&o] { return Restart(o); }; });
}

void AddComplete(CLI::App& root, CompleteOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand("complete", "Print the model's answer to a text as it comes");
  AddApiServer(app, o.server);
  app->add_option("text", o.text, "The prompt, or with --chat the user's message")->required();
  app->add_option("--model", o.model, "Model name (default: the first that the server offers)");
  app->add_flag("--chat", o.chat, "Send the text as a chat message");
  app->add_flag("!--no-stream", o.stream, "Print the answer when it is whole");
  app->add_option("--max-tokens", o.max_tokens, "Longest answer, tokens")->capture_default_str();
  app->add_option("--temperature", o.temperature, "0 = greedy (default: the model's)");
  app->add_option("--top-p", o.top_p, "Nucleus (default: the model's)");
  app->add_option("--top-k", o.top_k, "Candidates (default: the model's)");
  app->add_option("--seed", o.seed, "Same seed, same answer (default: drawn by the router)");
  app->callback([&] { command = [&o] { return Complete(o); }; });
}

void AddStatus(CLI::App& root, StatusOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand("status", "Show workers, blocks and queues");
  AddDir(app, o.dir);
  AddRemote(app, o.remote)->needs("--router");
  app->add_flag("--json", o.json, "For programs");
  app->add_flag("--watch", o.watch, "Again and again until Ctrl-C");
  app->add_option("--interval-ms", o.interval_ms, "Between two looks of --watch, milliseconds")
      ->check(CLI::Range(50, 3'600'000))
      ->capture_default_str();
  app->callback([&] { command = [&o] { return ShowStatus(o); }; });
}

void AddAudit(CLI::App& root, AuditOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand(
      "audit",
      "Show every call that holds KV blocks and its owner, the router of --dir. Of several routers "
      "ask each by --router: it judges its own calls. Exit code: 0 all have an owner, 1 some have "
      "none in two looks, 2 not all servers could be asked");
  AddDir(app, o.dir);
  AddRemote(app, o.remote);
  app->add_flag("--json", o.json, "For programs");
  app->add_option("--interval-s", o.interval_s, "Between the two looks, seconds")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app->callback([&] { command = [&o] { return Audit(o); }; });
}

void AddBench(CLI::App& root, BenchOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand("bench", "Measure latency under an open-loop load");
  AddApiServer(app, o.server);
  app->add_option("--rate", o.rate, "Mean requests per second")->capture_default_str();
  app->add_option("--num-requests", o.num_requests, "Requests to send")->capture_default_str();
  app->add_option("--prompt-tokens", o.prompt_tokens, "Length of each prompt")
      ->capture_default_str();
  app->add_option("--max-tokens", o.max_tokens, "Length of each answer")->capture_default_str();
  app->add_option("--seed", o.seed, "Of arrivals and prompts")->capture_default_str();
  app->add_option("--ttft-slo-ms", o.ttft_slo_ms, "Goodput: time to first token, milliseconds")
      ->capture_default_str();
  app->add_option("--itl-slo-ms", o.itl_slo_ms, "Goodput: mean time between tokens, milliseconds")
      ->capture_default_str();
  app->add_option("--json", o.json, "Write the results to this file too");
  app->callback([&] { command = [&o] { return Bench(o); }; });
}

void AddDoctor(CLI::App& root, DoctorOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand("doctor", "Check this machine; each problem with its cure");
  AddDir(app, o.dir);
  AddRemote(app, o.remote)->needs("--router");
  app->add_option("--model", o.model, "Model folder (default: deploy/models/tiny-kjv)");
  app->add_option("--tp", o.tp, "Ranks of each worker that shall run here: 1, 2, 4 or 8")
      ->capture_default_str();
  app->callback([&] { command = [&o] { return Doctor(o); }; });
}

void AddCerts(CLI::App& root, CertsOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand("certs", "A CA and the --tls-dir of each server");
  app->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const CertsOptions&)) {
    CLI::App* sub = app->add_subcommand(name, help);
    sub->add_option("--dir", o.dir, "Folder: ca/, and one of each role")->capture_default_str();
    sub->callback([&, run] { command = [&o, run] { return run(o); }; });
    return sub;
  };
  add("init", "Make a CA, whose key stays in ca/", InitCerts)
      ->add_option("--trust-domain", o.trust_domain, "First part of the SPIFFE ids")
      ->capture_default_str();
  CLI::App* issue = add("issue", "Make a key and a certificate; prints what to give as --tls-dir",
                        IssueCerts);
  issue->add_option("--role", o.role, "router, prefill, decode or admin (default: all)")
      ->check(CLI::IsMember({"router", "prefill", "decode", "admin"}));
  issue->add_option("--namespace", o.name_space, "Second part")->capture_default_str();
  issue->add_option("--release", o.release, "Third part: only processes of one release know "
                    "each other")->capture_default_str();
  issue->add_option("--days", o.days, "That it is valid")->capture_default_str();
  add("renew", "Issue anew what ends within 10 days; servers take it without a restart", RenewCerts)
      ->add_flag("--all", o.all, "Whenever they end; amid rotate-ca by the new CA from here on");
  CLI::Option_group* step =
      add("rotate-ca", "Replace the CA while the servers run: --begin, `renew --all`, --finish, "
          "and after each the folders to their servers", RotateCa)
          ->add_option_group("Step");
  step->add_flag("--begin", o.begin, "Make a new CA; ca.crt of every role names both");
  step->add_flag("--finish", o.finish, "The old CA leaves ca.crt of every role");
  step->require_option(1);
}

void AddKeys(CLI::App& root, KeysOptions& o, Command& command) {
  CLI::App* app = root.add_subcommand("keys", "The router's --api-keys-file");
  app->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const KeysOptions&)) {
    CLI::App* sub = app->add_subcommand(name, help);
    sub->add_option("FILE", o.file, "Lines of tenants and digests of keys")->required();
    sub->callback([&, run] { command = [&o, run] { return run(o); }; });
    return sub;
  };
  CLI::App* made = add("add", "Make a key; prints it, once, and writes its SHA-256", AddKey);
  made->add_option("TENANT", o.tenant, "Whose it is")->required();
  made->add_option("OPTION", o.options,
                   "rate=N/s burst=N tokens=N/min concurrency=N quota=N/day max_priority=N "
                   "expires=DATE (default: limits as of the tenant's other keys)");
  add("list", "Show the keys: tenants, options and the first digits of digests", ListKeys);
  add("remove", "Remove a key; requests that it began go on", RemoveKey)
      ->add_option("ID", o.id, "As `list` shows it")
      ->required();
  add("check",
      "Say of every bad line what is wrong. Exit code: 0 the router takes it, 2 it does not",
      CheckKeys);
}

// " (did you mean --model?)" for the first unknown word of the command line.
std::string Suggestion(const CLI::App& root, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  const CLI::App* command = &root;
  for (const CLI::App* sub : root.get_subcommands({})) {
    names.push_back(sub->get_name());
    if (!words.empty() && words[0] == sub->get_name()) command = sub;
  }
  if (command == &root) {
    const std::string near = words.empty() ? "" : NearestName(words[0], names);
    return near.empty() ? "" : absl::StrCat(" (did you mean `baton ", near, "`?)");
  }
  names.clear();
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!absl::StartsWith(name, "--")) continue;
    const std::string near = NearestName(name, names);
    if (!near.empty() && near != name) return absl::StrCat(" (did you mean ", near, "?)");
  }
  return "";
}

}  // namespace

int RunCommandLine(int argc, char** argv) {
  CLI::App root("Baton: an LLM serving cluster of prefill and decode workers", "baton");
  root.require_subcommand(1);
  UpOptions up;
  std::string down_dir = ".baton";
  RestartOptions restart;
  CompleteOptions complete;
  StatusOptions status;
  AuditOptions audit;
  BenchOptions bench;
  DoctorOptions doctor;
  CertsOptions certs;
  KeysOptions keys;
  Command command;
  AddUp(root, up, command);
  AddDown(root, down_dir, command);
  AddRestart(root, restart, command);
  AddComplete(root, complete, command);
  AddStatus(root, status, command);
  AddAudit(root, audit, command);
  AddBench(root, bench, command);
  AddDoctor(root, doctor, command);
  AddCerts(root, certs, command);
  AddKeys(root, keys, command);
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return root.exit(help);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    std::fprintf(stderr, "baton: %s%s; see `baton%s --help`\n", error.what(),
                 Suggestion(root, words).c_str(),
                 root.get_subcommands().empty()
                     ? ""
                     : absl::StrCat(" ", root.get_subcommands()[0]->get_name()).c_str());
    return 2;
  }
  return command();
}

}  // namespace baton::cli
