#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace baton {

// Floats that each pass overwrites before it reads them: never initialised, so memory that is
// reserved for large passes costs nothing until one comes.
class ActivationBuffer {
 public:
  // Room for `size` floats. What was there is lost when it grows.
  void Reserve(int64_t size) {
    if (size <= size_) return;
    data_ = std::make_unique_for_overwrite<float[]>(size);
    size_ = size;
  }

  float* data() const { return data_.get(); }
  std::span<float> First(int64_t count) const { return {data(), static_cast<size_t>(count)}; }

 private:
  std::unique_ptr<float[]> data_;
  int64_t size_ = 0;
};

}  // namespace baton
