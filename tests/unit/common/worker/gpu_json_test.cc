#include "common/worker/gpu_json.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(GpuJsonTest, IsOneLineWithEveryField) {
  const GpuReport report = {.build = "cuda",
                            .driver = "13.0",
                            .problem = "p",
                            .gpus = {{.index = 1,
                                      .name = "A \"GPU\"\n\xff",
                                      .architecture = "sm_90",
                                      .memory_total = int64_t{80} << 30,
                                      .memory_free = 5,
                                      .unusable = "u"}},
                            .chosen = "cpu",
                            .reason = "r"};
  EXPECT_EQ(ToJson(report),
            R"({"build":"cuda","chosen":"cpu","driver":"13.0","gpus":[{"architecture":"sm_90",)"
            R"("index":1,"memory_free":5,"memory_total":85899345920,)"
            "\"name\":\"A \\\"GPU\\\"\\n\uFFFD\","
            R"("unusable":"u"}],"problem":"p","reason":"r"})");
  EXPECT_EQ(ToJson({}).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace baton
