#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/cpu/kernel_set.h"

namespace baton {

// Matrix products with weights over a pool: brings the activations into the kernel's order, and
// divides the work by output. A list of products (one per expert, each of several segments of k
// whose sums stay apart) is one division. Keeps its memory
// from call to call, so that only the first of a size allocates. Not reentrant.
class GemmRunner {
 public:
  // Both outlive the runner.
  GemmRunner(const KernelSet* set, ThreadPool* pool) : set_(set), pool_(pool) {}

  // On checked arguments.
  void Run(const GemmArgs& args);
  void Run(const ExpertGemmArgs& args);

 private:
  // Rows of a times one matrix, and where its tiles and tasks lie among those of the list.
  struct Product {
    RowTiles tiles;         // Of the first segment apart.
    int64_t first_row = 0;  // Of the rows of the list.
    int64_t first_tile = 0;
    int64_t first_task = 0;
    int64_t first_byte = 0;     // Of the packed activations.
    int64_t segment_bytes = 0;  // Of them, of each segment apart.
    int64_t tiles_each = 0;  // Of a task.
    int64_t panels_each = 0;
    int64_t panel_blocks = 0;
    int64_t segments_each = 0;  // Of those apart.
    int64_t tasks_each = 0;     // Of so many.
    Panels weights;
    const float* bias = nullptr;
    float* out = nullptr;
    int32_t segments = 1;  // Added up.

    RowTiles TilesOf(int64_t segment) const {
      RowTiles out = tiles;
      out.data += segment * segment_bytes;
      return out;
    }
  };
  // How the products of a list cut k into sums that stay apart.
  struct Apart {
    int64_t count = 1;
    int64_t out_stride = 0;  // From one to the next.
  };
  // The rows of all products, in order.
  struct Rows {
    const float* a = nullptr;
    int64_t a_stride = 0;
    const int32_t* row_order = nullptr;  // Row i is row row_order[i] / top_k of a; or null: row i.
    int64_t top_k = 1;
  };

  void Clear(const Apart& apart);
  // Products of one list have the same k and dtype of weights.
  void Add(int64_t m, DType a_rounded_to, const Panels& w, const float* bias, float* out,
           int32_t segments = 1);
  void PackRows(const Rows& rows);
  void Multiply(int64_t out_stride);
  void RunTask(int64_t index, int64_t out_stride, float* pending);
  // The product whose tiles (or tasks, by `first`) hold that index of the list.
  const Product& ProductOf(int64_t index, int64_t Product::*first) const;
  void ForTasks(int64_t num_tasks, bool small, ThreadPool::Body body);

  const KernelSet* set_;
  ThreadPool* pool_;
  std::vector<Product> products_;
  Apart apart_;
  int64_t num_rows_ = 0;
  int64_t num_tiles_ = 0;
  int64_t num_tasks_ = 0;
  int64_t num_bytes_ = 0;
  int64_t num_multiplies_ = 0;
  std::vector<std::byte> activations_;  // Packed, by product.
  std::vector<float> gathered_;         // A tile for each thread.
  std::vector<float> pending_;          // kPendingFloats for each thread.
};

}  // namespace baton
