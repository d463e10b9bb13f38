#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/weights.h"
#include "kernels/api/buffer.h"
#include "kernels/api/device.h"

namespace baton {

// A weight matrix with its bias, in the order that the device's matrix product reads.
struct PackedLinear {
  PackedMatrix weights;  // [out_features, in_features]
  Buffer bias;           // f32 [out_features], or empty.
};

// Both empty: there is no such norm.
struct PackedNorm {
  Buffer weight;  // f32 [hidden_size], as all norms.
  Buffer bias;    // [hidden_size], of a layer norm.
};

// The experts of a layer, of each the rank's part: rows of gate and up, columns of down.
struct PackedExperts {
  PackedMatrix router;                // [count, hidden_size]; empty in other layers.
  std::vector<PackedMatrix> gate_up;  // [count], each [2 * expert_ffn_size, hidden_size].
  std::vector<PackedMatrix> down;     // [count], each [hidden_size, expert_ffn_size].
  PackedMatrix shared_gate;  // [1, hidden_size], or empty.
};

struct PackedLayer {
  PackedNorm attention_norm;
  PackedLinear qkv;       // [(2 * num_kv_heads + num_heads) * head_dim, hidden_size]: k, v, q.
  Buffer q_norm;          // [head_dim], or empty.
  Buffer k_norm;          // [head_dim], or empty.
  PackedLinear o;         // [hidden_size, num_heads * head_dim]
  Buffer attention_output_norm;  // [hidden_size], or empty.
  PackedNorm ffn_norm;
  PackedLinear gate_up;   // [2 * ffn_size, hidden_size]: gate, then up; without a gate up alone.
  PackedLinear down;      // [hidden_size, ffn_size]
  PackedExperts experts;  // With them gate_up and down are the shared expert's, or empty.
  Buffer ffn_output_norm;  // [hidden_size], or empty.
};

// All parameters of a model that one rank needs, its own copy in the memory of a device. The sizes
// are the rank's (RankShape). Immutable.
struct PackedModel {
  PackedMatrix embedding;      // [num_token_ids, embedding_dim]
  PackedMatrix lm_head;        // The same; empty with tied embeddings.
  PackedMatrix positions;      // [max_position_embeddings, hidden_size], or empty.
  PackedLinear embedding_in;   // [hidden_size, embedding_dim], or empty.
  PackedLinear embedding_out;  // [embedding_dim, hidden_size], or empty.
  PackedNorm embedding_norm;
  PackedNorm final_norm;
  std::vector<PackedLayer> layers;

  const PackedMatrix& output() const { return lm_head.n() > 0 ? lm_head : embedding; }
};

int64_t SizeBytes(const PackedModel& model);

struct PackOptions {
  // Called with the bytes of a tensor that has been copied and will not be read again.
  std::function<void(std::span<const std::byte>)> release;
  ThreadPool* threads = nullptr;  // They read the tensors (Device::PackBy).
};

// Of a group with a rank on each device. Whole on each are norms, biases of o and down, and what
// lies between the embedding and the first layer, and between the last and the output layer.
using PackedRanks = std::vector<PackedModel>;

// What enters products is rounded to `compute`. Copies tensor by tensor, of each to each rank its
// part, so that with a `release` that gives their memory back the model is never there twice.
// RESOURCE_EXHAUSTED when the memory cannot be had; DATA_LOSS when a tensor cannot be read.
// CheckRanks holds.
absl::StatusOr<PackedRanks> PackModel(const ModelConfig& config, const ModelWeights& weights,
                                      DType compute, std::span<Device* const> devices,
                                      const PackOptions& options = {});

}  // namespace baton
