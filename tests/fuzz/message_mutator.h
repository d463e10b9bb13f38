#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "router/generation/utf8.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// One change of one field somewhere in a protobuf message: what a change of its bytes seldom is.
namespace baton {

class MessageMutator {
 public:
  explicit MessageMutator(uint64_t seed) : random_(seed) {}

  void Mutate(google::protobuf::Message* message) {
    using google::protobuf::FieldDescriptor;
    const auto* reflection = message->GetReflection();
    const auto* type = message->GetDescriptor();
    if (type->field_count() == 0) return;
    const FieldDescriptor* field =
        type->field(static_cast<int>(random_.Below(static_cast<uint64_t>(type->field_count()))));
    const uint64_t what = random_.Below(8);
    if (what == 0) return reflection->ClearField(message, field);
    if (field->is_repeated()) return MutateList(message, field, what);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return Mutate(reflection->MutableMessage(message, field));
    }
    SetScalar(message, field, -1);
  }

 private:
  using Field = google::protobuf::FieldDescriptor;

  void MutateList(google::protobuf::Message* message, const Field* field, uint64_t what) {
    const auto* reflection = message->GetReflection();
    const int size = reflection->FieldSize(*message, field);
    if (what == 1 && size > 0) return reflection->RemoveLast(message, field);
    if (what == 2 && size > 1) return reflection->SwapElements(message, field, 0, Index(size));
    const bool is_message = field->cpp_type() == Field::CPPTYPE_MESSAGE;
    if (is_message) {
      return Mutate(size == 0 || what == 3
                        ? reflection->AddMessage(message, field)
                        : reflection->MutableRepeatedMessage(message, field, Index(size)));
    }
    SetScalar(message, field, size == 0 || what <= 4 ? kAppend : Index(size));
  }

  int Index(int size) { return static_cast<int>(random_.Below(static_cast<uint64_t>(size))); }

  // -1 sets a field that is no list, kAppend adds to one.
  void SetScalar(google::protobuf::Message* message, const Field* field, int index) {
    const auto* r = message->GetReflection();
    const auto put = [&](auto set, auto set_at, auto add, auto value) {
      if (index == -1) return (r->*set)(message, field, value);
      if (index == kAppend) return (r->*add)(message, field, value);
      (r->*set_at)(message, field, index, value);
    };
    using R = google::protobuf::Reflection;
    switch (field->cpp_type()) {
      case Field::CPPTYPE_INT32:
        return put(&R::SetInt32, &R::SetRepeatedInt32, &R::AddInt32, static_cast<int32_t>(Int()));
      case Field::CPPTYPE_INT64:
        return put(&R::SetInt64, &R::SetRepeatedInt64, &R::AddInt64, Int());
      case Field::CPPTYPE_UINT32:
        return put(&R::SetUInt32, &R::SetRepeatedUInt32, &R::AddUInt32,
                   static_cast<uint32_t>(Int()));
      case Field::CPPTYPE_UINT64:
        return put(&R::SetUInt64, &R::SetRepeatedUInt64, &R::AddUInt64,
                   static_cast<uint64_t>(Int()));
      case Field::CPPTYPE_FLOAT:
        return put(&R::SetFloat, &R::SetRepeatedFloat, &R::AddFloat, Float());
      case Field::CPPTYPE_DOUBLE:
        return put(&R::SetDouble, &R::SetRepeatedDouble, &R::AddDouble, double{Float()});
      case Field::CPPTYPE_BOOL:
        return put(&R::SetBool, &R::SetRepeatedBool, &R::AddBool, random_.Below(2) == 1);
      case Field::CPPTYPE_ENUM:
        return put(&R::SetEnumValue, &R::SetRepeatedEnumValue, &R::AddEnumValue,
                   static_cast<int>(random_.Below(5)));
      case Field::CPPTYPE_STRING:
        return SetText(message, field, index);
      case Field::CPPTYPE_MESSAGE:
        return;
    }
  }

  void SetText(google::protobuf::Message* message, const Field* field, int index) {
    const auto* r = message->GetReflection();
    std::string text;
    if (index == -1) text = r->GetString(*message, field);
    if (index >= 0) text = r->GetRepeatedString(*message, field, index);
    const size_t size = text.size();
    if (random_.Below(4) == 0) {
      text.assign(random_.Below(2) == 0 ? 32 : random_.Below(300), 'a');
    } else {
      text.resize(size + 16);
      text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
    }
    if (field->type() == Field::TYPE_STRING) text = ToValidUtf8(text);  // Else nobody parses it.
    if (index == -1) return r->SetString(message, field, text);
    if (index == kAppend) return r->AddString(message, field, text);
    r->SetRepeatedString(message, field, index, text);
  }

  int64_t Int() {
    switch (random_.Below(4)) {
      case 0:
        return static_cast<int64_t>(random_.Below(1024)) - 8;
      case 1:  // About a power of two.
        return static_cast<int64_t>((uint64_t{1} << random_.Below(64)) + random_.Below(3) - 1);
      case 2:
        return -static_cast<int64_t>(random_.Next() >> random_.Below(64) >> 1);
      default:
        return static_cast<int64_t>(random_.Next() >> random_.Below(64));
    }
  }

  float Float() {
    static constexpr float kSpecial[] = {
        0.0f,  -0.0f,  1.0f,   2.0f,   -2.0f,
        100.f, 1e-45f, 1e38f,  -1e38f, __builtin_inff(), __builtin_nanf("")};
    if (random_.Below(2) == 0) return kSpecial[random_.Below(std::size(kSpecial))];
    return static_cast<float>(random_.Unit() * 4 - 1);
  }

  static constexpr int kAppend = -2;
  Random random_;
};

// The library would print each string that is not UTF-8.
inline const bool kProtobufIsQuiet = [] {
  google::protobuf::SetLogHandler(nullptr);
  return true;
}();

// For LLVMFuzzerCustomMutator of a target whose input is `prefix` bytes and a Message: mostly
// changes a field, else the bytes.
template <typename Message>
size_t MutateAs(uint8_t* data, size_t size, size_t max_size, size_t prefix, unsigned seed) {
  Message message;
  const size_t head = std::min(size, prefix);
  const bool parsed = message.ParseFromArray(data + head, static_cast<int>(size - head));
  if (head < prefix || seed % 4 == 0 || !parsed) return LLVMFuzzerMutate(data, size, max_size);
  MessageMutator(seed).Mutate(&message);
  std::string bytes;
  if (!message.SerializeToString(&bytes) || bytes.size() + prefix > max_size) return size;
  std::copy(bytes.begin(), bytes.end(), data + prefix);
  return prefix + bytes.size();
}

}  // namespace baton
