#include "common/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/unit/common/base/populating_kernel.h"
#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<std::map<std::string, StoredTensor>> ParseTensors(const std::string& bytes) {
  return ParseSafetensors("f", std::as_bytes(std::span(bytes.data(), bytes.size())));
}

std::string TensorsError(const std::string& bytes) {
  return std::string(ParseTensors(bytes).status().message());
}

// The error of a header over 8 bytes of data.
std::string HeaderError(const std::string& header) {
  return TensorsError(SafetensorsBytes(header, "12345678"));
}

// The error of a file whose only tensor "t" has this entry, over 8 bytes of data.
std::string EntryError(const std::string& entry) { return HeaderError("{\"t\": " + entry + "}"); }

TEST(SafetensorsTest, ReadsNamesShapesAndBytes) {
  const std::string bytes = SafetensorsBytes({{"b", "F32", {1, 2}, "12345678"},
                                              {"a", "BF16", {3}, "abcdef"},
                                              {"none", "F16", {4, 0}, ""},
                                              {"scalar", "I64", {}, "ABCDEFGH"}});
  const auto tensors = ParseTensors(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 4u);
  const StoredTensor& b = tensors->at("b");
  EXPECT_EQ(b.dtype, "F32");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.bytes.data()), b.bytes.size()), "12345678");
  EXPECT_EQ(tensors->at("a").bytes.size(), 6u);
  EXPECT_EQ(tensors->at("none").bytes.size(), 0u);
  EXPECT_TRUE(tensors->at("scalar").shape.empty());
}

TEST(SafetensorsTest, AcceptsMetadataAndPaddingSpaces) {
  EXPECT_TRUE(ParseTensors(SafetensorsBytes(R"({"__metadata__": {"format": "pt"}}   )", "")).ok());
  EXPECT_THAT(TensorsError(SafetensorsBytes(R"({"__metadata__": {"format": 1}})", "")),
              HasSubstr("__metadata__"));
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string whole =
      SafetensorsBytes({{"a", "F32", {2}, "12345678"}, {"b", "F16", {1}, "ab"}});
  ASSERT_TRUE(ParseTensors(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTensors(whole.substr(0, size)).status())) << size;
  }
  EXPECT_THAT(TensorsError(whole + "x"),
              HasSubstr("has 11 bytes of data, but its tensors end at 10"));
}

TEST(SafetensorsTest, RefusesHeadersThatLieAboutTheirLength) {
  std::string bytes = SafetensorsBytes("{}", "");
  bytes[0] = 3;
  EXPECT_THAT(TensorsError(bytes), HasSubstr("f: truncated: header of 3 bytes, but only 2 follow"));
  bytes[7] = '\x7f';
  EXPECT_THAT(TensorsError(bytes), HasSubstr("at most 16777216 are allowed"));
}

TEST(SafetensorsTest, RefusesEntriesThatLie) {
  const char* shape = R"("dtype": "F32", "shape": [2])";
  const auto with_offsets = [&](const std::string& offsets) {
    return EntryError(std::string("{") + shape + R"(, "data_offsets": )" + offsets + "}");
  };
  EXPECT_EQ(with_offsets("[0, 8]"), "");
  EXPECT_THAT(with_offsets("[8, 0]"), HasSubstr("f: tensor \"t\": data_offsets [8,0] begin after"));
  EXPECT_THAT(with_offsets("[0, 9]"), HasSubstr("end beyond the 8 bytes"));
  EXPECT_THAT(with_offsets("[18446744073709551608, 18446744073709551615]"), HasSubstr("beyond"));
  EXPECT_THAT(with_offsets("[18446744073709551616, 8]"), HasSubstr("whole numbers"));
  EXPECT_THAT(with_offsets("[0, 4]"), HasSubstr("hold 4 bytes, but shape [2] of F32 needs 8"));
  EXPECT_THAT(with_offsets("[-8, 0]"), HasSubstr("whole numbers"));
  EXPECT_THAT(with_offsets("[0, 8.0]"), HasSubstr("whole numbers"));
  EXPECT_THAT(with_offsets("[0]"), HasSubstr("two whole numbers"));
  EXPECT_THAT(with_offsets("{}"), HasSubstr("two whole numbers"));
}

TEST(SafetensorsTest, RefusesShapesWhoseProductOverflows) {
  const auto with_shape = [&](const std::string& shape, const std::string& dtype = "F32") {
    return EntryError(R"({"dtype": ")" + dtype + R"(", "shape": )" + shape +
                      R"(, "data_offsets": [0, 8]})");
  };
  EXPECT_THAT(with_shape("[4294967296, 4294967296, 2]"), HasSubstr("an impossible number"));
  EXPECT_THAT(with_shape("[9223372036854775807, 2]"), HasSubstr("an impossible number"));
  EXPECT_THAT(with_shape("[18446744073709551615]"), HasSubstr("not a whole number"));
  EXPECT_THAT(with_shape("[-2]"), HasSubstr("not a whole number"));
  EXPECT_THAT(with_shape("[2.0]"), HasSubstr("not a whole number"));
  EXPECT_THAT(with_shape("2"), HasSubstr("shape is not a list"));
  EXPECT_THAT(with_shape("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]"), HasSubstr("17 dimensions"));
  EXPECT_THAT(with_shape("[3]", "F4"), HasSubstr("an impossible number"));
  EXPECT_EQ(with_shape("[16]", "F4"), "");
}

TEST(SafetensorsTest, RefusesIllFormedEntriesAndHeaders) {
  EXPECT_THAT(EntryError("[]"), HasSubstr("{dtype, shape, data_offsets}"));
  EXPECT_THAT(EntryError(R"({"dtype": "F32", "shape": [2]})"), HasSubstr("data_offsets}"));
  EXPECT_THAT(EntryError(R"({"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]})"),
              AllOf(HasSubstr("tensor \"t\""), HasSubstr("Q4"), HasSubstr("not known")));
  EXPECT_THAT(EntryError(R"({"dtype": 1, "shape": [2], "data_offsets": [0, 8]})"),
              HasSubstr("dtype is not a string"));
  EXPECT_THAT(HeaderError("[]"), HasSubstr("header is not an object"));
  EXPECT_THAT(HeaderError("{"), HasSubstr("f: header: not valid JSON"));
  EXPECT_THAT(HeaderError(std::string(9, '[')), HasSubstr("nested 9 deep; at most 8"));
  const std::string entry = R"("t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})";
  EXPECT_THAT(HeaderError("{" + entry + ", " + entry + "}"), HasSubstr("\"t\" appears twice"));
}

TEST(SafetensorsTest, RefusesOverlapsAndHoles) {
  const auto two = [](int begin_a, int end_a, int begin_b, int end_b) {
    const auto entry = [](int begin, int end) {
      return json{{"dtype", "U8"}, {"shape", {end - begin}}, {"data_offsets", {begin, end}}};
    };
    return HeaderError(json{{"a", entry(begin_a, end_a)}, {"b", entry(begin_b, end_b)}}.dump());
  };
  EXPECT_EQ(two(0, 4, 4, 8), "");
  EXPECT_EQ(two(4, 8, 0, 4), "");
  EXPECT_THAT(two(0, 5, 4, 8), HasSubstr("tensor \"b\": begins at byte 4 of the data, inside"));
  EXPECT_THAT(two(0, 8, 0, 8), HasSubstr("inside another tensor"));
  EXPECT_THAT(two(0, 3, 4, 8), HasSubstr("tensor \"b\": begins at byte 4 of the data, after a"));
  EXPECT_THAT(two(1, 4, 4, 8), HasSubstr("tensor \"a\": begins at byte 1 of the data, after a"));
}

class ShardsTest : public ::testing::Test {
 protected:
  ShardsTest() {
    dir_.Write("one.safetensors", SafetensorsBytes({{"a", "F32", {1}, "1234"}}));
    dir_.Write("sub/two.safetensors", SafetensorsBytes({{"b", "F16", {1}, "ab"}}));
  }
  absl::Status OpenWith(const json& weight_map) {
    dir_.Write("model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
    return SafetensorsFiles::Open(dir_.path()).status();
  }
  std::string TensorsError(const json& weight_map) {
    return std::string(OpenWith(weight_map).message());
  }

  ModelDir dir_;
  json good_ = {{"a", "one.safetensors"}, {"b", "sub/two.safetensors"}};
};

TEST_F(ShardsTest, OpensEveryShardOfTheIndex) {
  ASSERT_TRUE(OpenWith(good_).ok());
  const auto files = SafetensorsFiles::Open(dir_.path());
  EXPECT_EQ(files->tensors().size(), 2u);
  EXPECT_EQ(files->tensors().at("b").file, "sub/two.safetensors");
}

TEST_F(ShardsTest, RefusesShardsOutsideTheFolder) {
  for (const char* name : {"../one.safetensors", "/etc/one.safetensors", "sub/../one.safetensors",
                           "", ".", "./one.safetensors", "sub//two.safetensors", "config.json",
                           "..\\one.safetensors", "sub/../../one.safetensors"}) {
    EXPECT_THAT(TensorsError({{"a", name}}),
                AllOf(HasSubstr("tensor \"a\""), HasSubstr("within the model folder")))
        << name;
  }
  EXPECT_THAT(TensorsError({{"a", std::string("one\0.safetensors", 16)}}), HasSubstr("within"));
  EXPECT_THAT(TensorsError({{"a", 1}}), HasSubstr("within"));
}

TEST_F(ShardsTest, RefusesAnIndexThatLies) {
  EXPECT_THAT(TensorsError({{"a", "none.safetensors"}}),
              HasSubstr("none.safetensors: no such file"));
  EXPECT_THAT(TensorsError({{"a", "sub/two.safetensors"}, {"b", "sub/two.safetensors"}}),
              HasSubstr("tensor \"a\": is not in sub/two.safetensors"));
  json extra = good_;
  extra["c"] = "one.safetensors";
  EXPECT_THAT(TensorsError(extra), HasSubstr("tensor \"c\": is not in one.safetensors"));
  dir_.Write("one.safetensors",
             SafetensorsBytes({{"a", "F32", {1}, "1234"}, {"hidden", "U8", {1}, "x"}}));
  EXPECT_THAT(TensorsError(good_),
              HasSubstr("tensor \"hidden\": is in one.safetensors but not in"));
  dir_.Write("one.safetensors", SafetensorsBytes({{"a", "U8", {1}, "1"}, {"b", "U8", {1}, "2"}}));
  EXPECT_THAT(TensorsError(good_), HasSubstr("tensor \"b\": is in one.safetensors too"));
  EXPECT_THAT(TensorsError(json::array()), HasSubstr("weight_map"));
  EXPECT_THAT(TensorsError(json::object()), HasSubstr("weight_map"));
}

TEST_F(ShardsTest, AFolderWithoutWeightsSaysWhatIsMissing) {
  const ModelDir empty;
  const absl::Status status = SafetensorsFiles::Open(empty.path()).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("neither model.safetensors nor"));
}

TEST(SafetensorsDigestTest, DependsOnContentsAndNotOnTheirPlace) {
  const auto digest = [](const std::vector<std::pair<std::string, std::string>>& files) {
    const ModelDir dir;
    for (const auto& [name, bytes] : files) dir.Write(name, bytes);
    return *SafetensorsFiles::Open(dir.path())->Digest();
  };
  const TestTensor a{"a", "U8", {2}, "12"};
  const TestTensor b{"b", "U8", {2}, "34"};
  const uint64_t whole = digest({{"model.safetensors", SafetensorsBytes({a, b})}});
  EXPECT_EQ(whole, digest({{"model.safetensors", SafetensorsBytes({b, a})}}));
  EXPECT_EQ(whole, digest({{"x.safetensors", SafetensorsBytes({a})},
                           {"y.safetensors", SafetensorsBytes({b})},
                           {"model.safetensors.index.json",
                            R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})"}}));
  for (const TestTensor& other :
       {TestTensor{"b", "U8", {2}, "35"}, TestTensor{"c", "U8", {2}, "34"},
        TestTensor{"b", "I8", {2}, "34"}, TestTensor{"b", "U8", {1, 2}, "34"}}) {
    EXPECT_NE(whole, digest({{"model.safetensors", SafetensorsBytes({a, other})}}));
  }
}

TEST(SafetensorsDigestTest, ThreadsShareThePiecesOfALargeTensor) {
  const auto digest = [](const std::string& bytes, int num_threads) {
    const ModelDir dir;
    const TestTensor small{"b", "U8", {2}, "12"};
    dir.Write("model.safetensors",
              SafetensorsBytes({{"a", "U8", {static_cast<int64_t>(bytes.size())}, bytes}, small}));
    return *SafetensorsFiles::Open(dir.path())->Digest(num_threads);
  };
  std::string bytes((40 << 20) + 5, 'x');
  const uint64_t whole = digest(bytes, 1);
  for (const int num_threads : {2, 3, 9}) EXPECT_EQ(digest(bytes, num_threads), whole);
  for (const size_t at : {size_t{0}, size_t{20} << 20, bytes.size() - 1}) {
    bytes[at] = 'y';
    EXPECT_NE(digest(bytes, 3), whole) << at;
    bytes[at] = 'x';
  }
}

TEST(SafetensorsDigestTest, AFileThatHasBecomeShorterIsNamedAndNoThreadHangs) {
  if (!KernelFindsUnreadablePages()) GTEST_SKIP() << "a kernel without MADV_POPULATE_READ";
  for (const int num_threads : {1, 4}) {
    const ModelDir dir;
    const std::string bytes(40 << 20, 'x');
    dir.Write("model.safetensors",
              SafetensorsBytes({{"a", "U8", {5}, "12345"}, {"b", "U8", {40 << 20}, bytes}}));
    const auto files = SafetensorsFiles::Open(dir.path());
    ASSERT_TRUE(files->Digest(num_threads).ok());
    ASSERT_EQ(truncate((dir.path() + "/model.safetensors").c_str(), 20 << 20), 0);
    const absl::Status status = files->Digest(num_threads).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors: tensor \"b\": "));
  }
}

}  // namespace
}  // namespace baton
