#include "common/checkpoint/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/golden/golden_file.h"
#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

uint64_t DigestOf(const std::string& dir) {
  const auto model = LoadModelFiles(dir);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? model->model_digest : 0;
}

TEST(ModelFilesTest, TheShippedModelLoads) {
  const auto model = LoadModelFiles(BATON_SOURCE_DIR "/deploy/models/tiny-kjv");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->config.num_layers, 6);
  EXPECT_EQ(model->config.max_model_len, 2048);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(1, 5));
  EXPECT_EQ(model->weights.lm_head.bytes.data(), model->weights.embedding.bytes.data());
}

TEST(ModelFilesTest, EveryRandomModelLoadsAndHasItsOwnDigest) {
  std::set<uint64_t> digests;
  for (const std::string& name : GoldenModels()) digests.insert(DigestOf(GoldenModelDir(name)));
  EXPECT_EQ(digests.size(), GoldenModels().size());
}

TEST(ModelFilesTest, DigestSeesWhereAnAnswerEnds) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("qwen2-yarn"));
  std::set<uint64_t> digests;
  for (const char* ends : {"3", "4", "[3, 4]"}) {
    dir.Write("generation_config.json", absl::StrCat(R"({"eos_token_id": )", ends, "}"));
    digests.insert(DigestOf(dir.path()));
  }
  EXPECT_EQ(digests.size(), 3u);
}

TEST(ModelFilesTest, DigestIgnoresSpellingAndSeesWhatIsComputed) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("qwen2-yarn"));
  const uint64_t original = DigestOf(dir.path());
  dir.Write("config.json", dir.Read("config.new.json"));
  EXPECT_EQ(DigestOf(dir.path()), original);

  auto config = nlohmann::json::parse(dir.Read("config.new.json"));
  config["rope_parameters"]["factor"] = 4.5;
  dir.Write("config.json", config.dump());
  EXPECT_NE(DigestOf(dir.path()), original);

  dir.Write("config.json", dir.Read("config.new.json"));
  std::string weights = dir.Read("model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  dir.Write("model.safetensors", weights);
  EXPECT_NE(DigestOf(dir.path()), original);
}

TEST(ModelFilesTest, ModelsThatDifferInALayersWindowDifferInTheirDigest) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("qwen2-window-layers"));
  std::set<uint64_t> digests = {DigestOf(dir.path())};
  const auto original = nlohmann::json::parse(dir.Read("config.json"));
  for (const auto& [name, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"sliding_window", 12}, {"use_sliding_window", false}}) {
    auto config = original;
    config[name] = value;
    if (name == "use_sliding_window") config.erase("layer_types");
    dir.Write("config.json", config.dump());
    digests.insert(DigestOf(dir.path()));
  }
  EXPECT_EQ(digests.size(), 3u);
}

TEST(ModelFilesTest, OfLongropeTheDigestHasBothListsAndTheLengthBetweenThem) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("llama-dynamic"));
  auto config = nlohmann::json::parse(dir.Read("config.json"));
  std::set<uint64_t> digests;
  const auto add = [&](int original, std::vector<double> shorts, std::vector<double> longs) {
    config["rope_scaling"] = {{"type", "longrope"},
                              {"original_max_position_embeddings", original},
                              {"attention_factor", 1},
                              {"short_factor", std::move(shorts)},
                              {"long_factor", std::move(longs)}};
    dir.Write("config.json", config.dump());
    digests.insert(DigestOf(dir.path()));
  };
  add(64, {1, 1, 1, 1}, {1, 2, 3, 4});
  add(65, {1, 1, 1, 1}, {1, 2, 3, 4});
  add(64, {1, 1, 1, 2}, {1, 2, 3, 4});
  add(64, {1, 1, 1, 1}, {1, 2, 3, 5});
  EXPECT_EQ(digests.size(), 4u);
}

TEST(ModelFilesTest, EndTokensComeFromGenerationConfigFirst) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("qwen3"));
  EXPECT_THAT(LoadModelFiles(dir.path())->eos_token_ids, ElementsAre(2));
  dir.Write("generation_config.json", R"({"eos_token_id": [7, 151645]})");
  EXPECT_THAT(LoadModelFiles(dir.path())->eos_token_ids, ElementsAre(7));
}

TEST(ModelFilesTest, ATiedConfigWithAnotherHeadIsNotTied) {
  const ModelDir dir;
  dir.CopyFrom(GoldenModelDir("llama-dynamic"));
  auto config = nlohmann::json::parse(dir.Read("config.json"));
  config["tie_word_embeddings"] = true;
  dir.Write("config.json", config.dump());
  EXPECT_FALSE(LoadModelFiles(dir.path())->config.tied_embeddings);
}

TEST(ModelFilesTest, ErrorsNameTheFile) {
  const ModelDir dir;
  EXPECT_THAT(std::string(LoadModelFiles(dir.path()).status().message()),
              HasSubstr("config.json: no such file"));
}

TEST(ModelFilesTest, WhoNamesAMissingFolderIsToldWhatToName) {
  const absl::Status missing = AtModelOption("/nowhere", absl::NotFoundError("no such folder"));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(),
            "--model /nowhere: no such folder; name a model folder in Hugging Face layout");
  EXPECT_EQ(AtModelOption("/m", absl::DataLossError("cut off")),
            absl::DataLossError("--model /m: cut off"));
}

}  // namespace
}  // namespace baton
