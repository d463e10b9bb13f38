// Runs a fuzz target without libFuzzer: replay CORPUS [MUTATIONS]. Every file of the corpus, then
// seeded mutations of them. An input that ends the process is left in ./crash-input; replay FILE 0
// runs it alone.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                                                size_t max_size, unsigned seed);
// So that the handler below runs for what the sanitizer finds, too.
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }

namespace {

constexpr size_t kMaxInputBytes = 8192;

baton::Random random_source(1);
std::vector<std::string> corpus;
std::string input;

void SaveInput(int signal) {
  if (std::FILE* file = std::fopen("crash-input", "wb")) {
    std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
    std::fputs("the input that did this is ./crash-input\n", stderr);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run() {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

void ReadCorpus(const std::filesystem::path& path) {
  const auto read = [](const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  if (std::filesystem::is_regular_file(path)) return read(path);
  if (!std::filesystem::is_directory(path)) return;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry);
  std::sort(files.begin(), files.end());
  for (const auto& file : files) read(file);
}

void Mutate() {
  input.resize(kMaxInputBytes);
  auto* data = reinterpret_cast<uint8_t*>(input.data());
  const std::string& from = corpus[random_source.Below(corpus.size())];
  size_t size = std::min(from.size(), kMaxInputBytes);
  std::memcpy(data, from.data(), size);
  for (uint64_t i = 1 + random_source.Below(4); i > 0; --i) {
    const auto seed = static_cast<unsigned>(random_source.Next());
    size = LLVMFuzzerCustomMutator != nullptr
               ? LLVMFuzzerCustomMutator(data, size, kMaxInputBytes, seed)
               : LLVMFuzzerMutate(data, size, kMaxInputBytes);
  }
  input.resize(size);
  input.shrink_to_fit();  // For the sanitizer to see reads past its end.
}

}  // namespace

// One change of the kinds that libFuzzer makes.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  std::string text(reinterpret_cast<char*>(data), size);
  const size_t at = random_source.Below(size + 1);
  const size_t length = random_source.Below(std::min<size_t>(size - at, 16) + 1);
  const std::string& other = corpus[random_source.Below(corpus.size())];
  const size_t other_at = random_source.Below(other.size() + 1);
  switch (random_source.Below(5)) {
    case 0:
      if (at < size) text[at] = static_cast<char>(text[at] ^ (1 << random_source.Below(8)));
      break;
    case 1:
      if (at < size) text[at] = static_cast<char>(random_source.Below(256));
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(at, text.substr(at, length));
      break;
    default:
      text.replace(at, length, other, other_at, random_source.Below(32));
  }
  size = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), size);
  return size;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: replay CORPUS [MUTATIONS]\n", stderr);
    return 2;
  }
  ReadCorpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s has no inputs\n", argv[1]);
    return 1;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) std::signal(signal, SaveInput);
  for (const std::string& one : corpus) {
    input = one;
    Run();
  }
  const int mutations = argc > 2 ? std::atoi(argv[2]) : 0;
  for (int i = 0; i < mutations; ++i) {
    Mutate();
    Run();
  }
  std::printf("%zu inputs and %d mutations of them\n", corpus.size(), mutations);
  return 0;
}
