#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "tests/unit/router/text/text_goldens.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char kMessages[] = R"([{"role":"user","content":"x"}])";

class ChatTemplateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { codec_ = LoadOrFail(kTinyKjv).release(); }
  static void TearDownTestSuite() { delete codec_; }
  void SetUp() override { ASSERT_NE(codec_, nullptr); }

  static absl::StatusOr<std::string> Render(const std::string& source) {
    return codec_->ApplyChatTemplate(kMessages, {.chat_template = source});
  }

  static void ExpectRefused(const std::string& source, const std::string& reason) {
    const auto text = Render(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 100);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(reason)) << source.substr(0, 100);
  }

  static TextCodec* codec_;
};

TextCodec* ChatTemplateTest::codec_ = nullptr;

TEST_F(ChatTemplateTest, RendersAsTransformers) {
  const auto& goldens = TextGoldens();
  ASSERT_GE(goldens["chat"].size(), 80u);
  for (const auto& c : goldens["chat"]) {
    SCOPED_TRACE(c["name"].get<std::string>() + " " + c["messages"].dump());
    const RenderOptions options = {
        .add_generation_prompt = c["add_generation_prompt"],
        .kwargs_json = c["kwargs"].dump(),
        .chat_template = goldens["templates"][c["name"].get<std::string>()],
    };
    const auto text = codec_->ApplyChatTemplate(c["messages"].dump(), options);
    if (c.contains("text")) {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, c["text"].get<std::string>());
    } else {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(text.status().message()), HasSubstr(c["error"].get<std::string>()));
    }
  }
}

TEST_F(ChatTemplateTest, AFormatThatTheLibraryCannotReadIsTheCallersMistake) {
  ExpectRefused("{{ '%(\u00e9)s' % {'\u00e9': 1} }}", "names a value by other than ASCII");
  ExpectRefused("{{ '%(\u00e9' | format(1) }}", "names a value by other than ASCII");
  ExpectRefused("{{ '%*d' % 1 }}", "must not take its width from a value");
  ExpectRefused("{{ '%100000d' | format(1) }}", "more than 5 digits");
}

TEST_F(ChatTemplateTest, RefusesMessagesThatAreNone) {
  const struct {
    const char* messages;
    const char* expected;
  } cases[] = {
      {"", "messages: not valid JSON"},
      {"[", "messages: not valid JSON"},
      {"{}", "messages: must be an array, not an object"},
      {"[]", "messages: must hold at least one message"},
      {"[1]", "messages[0]: must be an object, not a number"},
      {"[{}, null]", "messages[1]: must be an object, not null"},
      {"[\"\xff\"]", "messages is not UTF-8"},
  };
  for (const auto& c : cases) {
    const auto text = codec_->ApplyChatTemplate(c.messages, {});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << c.messages;
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(c.expected));
  }
  EXPECT_FALSE(codec_->ApplyChatTemplate(std::string(200000, '['), {}).ok());
}

TEST_F(ChatTemplateTest, KwargsAreTemplateVariables) {
  const auto render = [&](const std::string& kwargs) {
    return codec_->ApplyChatTemplate(
        kMessages, {.kwargs_json = kwargs, .chat_template = "{{ a }}|{{ add_generation_prompt }}"});
  };
  EXPECT_EQ(render(R"({"a": [1, null]})").value(), "[1, None]|True");
  EXPECT_EQ(render(R"({"add_generation_prompt": false, "tokenize": false})").value(), "|False");
  for (const char* bad : {"[]", "{", "7", R"({"messages": [{}]})", R"({"chat_template": "x"})",
                          R"({"continue_final_message": true})", R"({"tokenize": true})"}) {
    EXPECT_THAT(std::string(render(bad).status().message()), HasSubstr("chat_template_kwargs"));
  }
}

TEST_F(ChatTemplateTest, TellsTheTimeThatTheCallerGives) {
  const std::time_t now = 1700000000;
  char expected[64];
  std::tm local = {};
  std::strftime(expected, sizeof(expected), "%d %b %Y %H:%M", ::localtime_r(&now, &local));
  const auto text = codec_->ApplyChatTemplate(
      kMessages, {.chat_template = "{{ strftime_now('%d %b %Y %H:%M') }}", .now_s = now});
  EXPECT_EQ(text.value(), expected);
  EXPECT_THAT(Render("{{ strftime_now('%Y') }}").value(), ::testing::StartsWith("2"));
}

TEST_F(ChatTemplateTest, RefusalIsReportedInTheTemplatesWords) {
  ExpectRefused("{{ raise_exception('No <b> \\'here\\'\\nplease') }}", "No <b> 'here'\nplease");
  ExpectRefused("line\n{{ 1 / 0 }}", "(line 2)");
  EXPECT_LT(Render("{{ raise_exception('x' * 1000000) }}").status().message().size(), 3000u);
}

TEST_F(ChatTemplateTest, EndlessTemplatesEnd) {
  const std::string outer = "{% for a in range(100000) %}";
  ExpectRefused(outer + "{% for b in range(100000) %}{% endfor %}{% endfor %}",
                "too many instructions");
  ExpectRefused(outer + "{% if range(100000) == range(100000) %}{% endif %}{% endfor %}",
                "too long");
  ExpectRefused("{{ range(100001) }}", "100000");
  ExpectRefused("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "recursion");
  ExpectRefused("{% block b %}{{ self.b() }}{% endblock %}", "recursion");
}

TEST_F(ChatTemplateTest, LargeOutputIsRefused) {
  const std::string outer = "{% for a in range(100000) %}";
  ExpectRefused(outer + "{{ 'x' * 10000 }}{% endfor %}", "output is too large");
  ExpectRefused(outer + std::string(100000, 'x') + "{% endfor %}", "output is too large");
  ExpectRefused("{% set y %}" + outer + std::string(100000, 'x') + "{% endfor %}{% endset %}",
                "output is too large");
}

TEST_F(ChatTemplateTest, LargeValuesAreRefused) {
  const std::string grow = "{% set ns = namespace(x='ab') %}{% for a in range(99) %}";
  for (const char* step :
       {"ns.x ~ ns.x", "ns.x + ns.x", "ns.x * 2", "ns.x.replace('a', 'aa')",
        "ns.x | replace('a', 'aa')", "[ns.x, ns.x] | join", "'%s%s' % (ns.x, ns.x)"}) {
    ExpectRefused(grow + "{% set ns.x = " + step + " %}{% endfor %}", "too large");
  }
  ExpectRefused("{{ 'x' * 1000000000000 }}", "too large");
  ExpectRefused("{{ 'x' | center(99) | indent(1000) | list * 10000000 }}", "too large");
  ExpectRefused(
      "{% set x = ['x'] %}{% for a in [1] %}{% endfor %}" +
          [] {
            std::string levels;
            for (int i = 0; i < 20; ++i) levels += "{% set x = [x, x, x, x, x, x, x, x] %}";
            return levels;
          }() +
          "{{ x }}",
      "too large");
  ExpectRefused(
      "{% set big = 'x' * 30000000 %}" +
          [] {
            std::string copies;
            for (int i = 0; i < 100; ++i) {
              copies += "{% set v" + std::to_string(i) + " = big[1:] %}";
            }
            return copies;
          }(),
      "too much memory");
  ExpectRefused("{{ '%1000000000d' % 1 }}", "more than 5 digits");
  ExpectRefused("{{ '{:>1000000000}'.format(1) }}", "more than 5 digits");
}

TEST_F(ChatTemplateTest, DeepAndCyclicValuesAreRefused) {
  const std::string loop = "{% set ns = namespace(x=[1]) %}{% for a in range(100000) %}";
  for (const char* step : {"[ns.x]", "{'a': ns.x}", "(ns.x,)", "ns.x | batch(1) | list",
                           "dict(a=ns.x)", "[ns.x] | groupby('y')"}) {
    ExpectRefused(loop + "{% set ns.x = " + step + " %}{% endfor %}{{ ns.x }}", "deeply");
  }
  ExpectRefused("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "namespace");
  ExpectRefused("{% set ns = namespace() %}{% set ns.x = {'a': [ns]} %}{{ ns }}", "namespace");
}

TEST_F(ChatTemplateTest, DeepSourcesAreSafe) {
  const auto repeat = [](const std::string& unit, size_t times) {
    std::string text;
    for (size_t i = 0; i < times; ++i) text += unit;
    return text;
  };
  EXPECT_EQ(Render("{{ 1" + repeat("+1", 100000) + " }}").value(), "100001");
  EXPECT_EQ(Render("{{ x" + repeat("|e", 100000) + " }}").value(), "");
  EXPECT_EQ(Render("{{ x" + repeat(" and x", 40000) + " }}").value(), "");
  EXPECT_EQ(Render("{{ " + repeat("not ", 60000) + "x }}").value(), "False");
  EXPECT_EQ(Render("{% if x %}" + repeat("{% elif x %}", 20000) + "{% endif %}").value(), "");
  for (const char* opening :
       {"(", "[", "{1:", "{% if 1 %}", "{% for a in b %}", "{{", "{%", "{#"}) {
    EXPECT_FALSE(Render("{{ " + repeat(opening, 20000)).ok()) << opening;
  }
  EXPECT_FALSE(Render("{{ x" + repeat(".a", 100000) + " }}").ok());
  EXPECT_FALSE(Render("{{ x" + repeat("()", 100000) + " }}").ok());
  ExpectRefused(std::string(300000, 'x'), "larger than");
}

TEST_F(ChatTemplateTest, NothingOutsideOfTheTemplateCanBeReached) {
  for (const char* source :
       {"{% include '/etc/passwd' %}", "{% extends 'x' %}", "{% import 'x' as x %}",
        "{{ ''.__class__.__mro__ }}", "{{ open('x') }}", "{{ [].append(1) }}",
        "{{ {}.update(a=1) }}", "{{ namespace(_a=1) }}", "{{ 'x'.encode() }}", "{{ debug() }}",
        "{{ messages.pop() }}"}) {
    EXPECT_EQ(Render(source).status().code(), absl::StatusCode::kInvalidArgument) << source;
  }
}

TEST_F(ChatTemplateTest, ErrorsDoNotShowOtherMessages) {
  const auto text = codec_->ApplyChatTemplate(R"([{"role":"user","content":"secret"}])",
                                              {.chat_template = "{{ messages[0].content + 1 }}"});
  EXPECT_THAT(std::string(text.status().message()),
              AllOf(HasSubstr("chat template"), Not(HasSubstr("secret"))));
}

TEST_F(ChatTemplateTest, AFailedRenderingLeavesNothingBehind) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(
        Render("{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x ~ "
               "ns.x %}{% endfor %}")
            .ok());
    EXPECT_EQ(codec_->ApplyChatTemplate(kMessages, {}).value(),
              "<|begin_of_text|><|user|>\nx<|end|>\n<|assistant|>\n");
  }
}

}  // namespace
}  // namespace baton
