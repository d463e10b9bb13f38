// Random batches with encoders and images: their halves are their rows, and one that is moved on in
// place is one that is built anew. BATON_FUZZ_SEED and BATON_FUZZ_CASES choose others.
#include "kernels/api/batch_metadata.h"
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

class BatchFuzzTest : public FuzzTest {
 protected:
  // Sequences and the arrays that they point to.
  struct Sequences {
    std::vector<std::vector<int32_t>> blocks, cross;
    std::vector<std::vector<PlaceholderRange>> ranges;
    std::vector<BatchSequence> all;
    BuildBatchArgs args;
  };

  std::vector<int32_t> RandomBlocks(int64_t count) {
    std::vector<int32_t> blocks(count);
    for (int32_t& block : blocks) block = static_cast<int32_t>(Below(1000));
    return blocks;
  }

  Sequences RandomSequences() {
    Sequences r;
    const int64_t count = Below(6);
    r.args.block_size = static_cast<int32_t>(1 + Below(9));
    for (int64_t i = 0; i < count; ++i) {
      BatchSequence s{.is_prefill = Chance(50), .context_len = static_cast<int32_t>(Below(30))};
      s.query_len = s.is_prefill ? static_cast<int32_t>(1 + Below(30)) : 1;
      // One token more finds room.
      r.blocks.push_back(RandomBlocks((s.context_len + s.query_len) / r.args.block_size + 1));
      s.encoder_len = static_cast<int32_t>(Below(3) * Below(20));
      r.cross.push_back(RandomBlocks(s.encoder_len / r.args.block_size + 1));
      s.runs_encoder = s.is_prefill && Chance(50);
      std::vector<PlaceholderRange> ranges;
      for (int32_t at = 0; s.is_prefill && at < 50; at += 10) {
        if (Chance(40)) ranges.push_back({at, static_cast<int32_t>(Below(11))});
      }
      r.ranges.push_back(ranges);
      r.all.push_back(s);
    }
    for (int64_t i = 0; i < count; ++i) {
      r.all[i].blocks = r.blocks[i].data();
      r.all[i].num_blocks = static_cast<int32_t>(r.blocks[i].size());
      r.all[i].cross_blocks = r.cross[i].data();
      r.all[i].num_cross_blocks = static_cast<int32_t>(r.cross[i].size());
      r.all[i].placeholders = r.ranges[i].data();
      r.all[i].num_placeholders = static_cast<int32_t>(r.ranges[i].size());
    }
    r.args.sequences = r.all.data();
    r.args.num_sequences = static_cast<int32_t>(count);
    r.args.table_columns = 70;
    return r;
  }

  // Row `row` of `part` is row `of` of `whole`.
  static void ExpectRow(const Batch& part, int64_t row, const Batch& whole, int64_t of) {
    EXPECT_EQ(part.order[row], whole.order[of]);
    EXPECT_EQ(part.seq_lens[row], whole.seq_lens[of]);
    EXPECT_EQ(part.encoder_seq_lens[row], whole.encoder_seq_lens[of]);
    const int64_t tokens = part.query_start_loc[row + 1] - part.query_start_loc[row];
    ASSERT_EQ(tokens, whole.query_start_loc[of + 1] - whole.query_start_loc[of]);
    for (int64_t i = 0; i < tokens; ++i) {
      EXPECT_EQ(part.slot_mapping[part.query_start_loc[row] + i],
                whole.slot_mapping[whole.query_start_loc[of] + i]);
    }
    const int64_t from = part.encoder_query_start_loc[row];
    for (int64_t i = from; i < part.encoder_query_start_loc[row + 1]; ++i) {
      EXPECT_EQ(part.cross_slot_mapping[i],
                whole.cross_slot_mapping[whole.encoder_query_start_loc[of] + i - from]);
    }
    for (int64_t i = 0; i < part.max_blocks; ++i) {
      EXPECT_EQ(part.block_tables[row * part.max_blocks + i],
                whole.block_tables[of * part.max_blocks + i]);
    }
    for (int64_t i = 0; i < part.max_cross_blocks; ++i) {
      EXPECT_EQ(part.cross_block_tables[row * part.max_cross_blocks + i],
                whole.cross_block_tables[of * part.max_cross_blocks + i]);
    }
  }

  template <typename Body>
  void ForSeeds(const Body& body) {
    for (int64_t seed = FirstFuzzSeed(); seed < FirstFuzzSeed() + 5 * FuzzCases(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      random_ = Random(seed);
      body();
      if (HasFailure()) return;
    }
  }
};

TEST_P(BatchFuzzTest, PrefillsAndDecodesAreTheRowsOfTheWhole) {
  ForSeeds([&] {
    const Sequences sequences = RandomSequences();
    const absl::StatusOr<Batch> batch = BuildBatch(sequences.args);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const Batch prefills = *PrefillMetadata(*batch), decodes = *DecodeMetadata(*batch);
    ASSERT_EQ(prefills.order.size() + decodes.order.size(), batch->order.size());
    for (int64_t i = 0; i < batch->num_prefills; ++i) ExpectRow(prefills, i, *batch, i);
    for (int64_t i = batch->num_prefills; i < std::ssize(batch->order); ++i) {
      ExpectRow(decodes, i - batch->num_prefills, *batch, i);
    }
    // Each token of a prompt that lies in a range has one embedding, each other none.
    size_t in_ranges = 0;
    for (const BatchSequence& s : sequences.all) {
      for (int32_t p = s.context_len; p < s.context_len + s.query_len; ++p) {
        for (int32_t r = 0; r < s.num_placeholders; ++r) {
          const PlaceholderRange& range = s.placeholders[r];
          in_ranges += p >= range.offset && p < range.offset + range.length;
        }
      }
    }
    EXPECT_EQ(batch->multi_modal_dest.size(), in_ranges);
    EXPECT_EQ(batch->multi_modal_src.size(), in_ranges);
    for (const int32_t i : batch->multi_modal_src) EXPECT_LT(i, batch->num_multi_modal_embeddings);
  });
}

TEST_P(BatchFuzzTest, ABatchThatIsMovedOnIsTheOneThatIsBuiltAnew) {
  ForSeeds([&] {
    Sequences sequences = RandomSequences();
    Batch batch = *BuildBatch(sequences.args);
    std::vector<int32_t> tokens(batch.order.size());
    ASSERT_TRUE(AdvanceBatch(*kernels_,
                             {.block_size = sequences.args.block_size,
                              .sampled_tokens = tokens.data(),
                              .tokens = tokens.data(),
                              .turn_prefills_into_decodes = true},
                             batch)
                    .ok());
    std::vector<BatchSequence> next;
    for (const int32_t index : batch.order) {
      BatchSequence s = sequences.all[index];
      s.context_len += s.query_len;
      s.query_len = 1;
      s.is_prefill = s.runs_encoder = false;
      s.num_placeholders = 0;
      next.push_back(s);
    }
    sequences.args.sequences = next.data();
    const Batch anew = *BuildBatch(sequences.args);
    EXPECT_EQ(batch.seq_lens, anew.seq_lens);
    EXPECT_EQ(batch.context_lens, anew.context_lens);
    EXPECT_EQ(batch.positions, anew.positions);
    EXPECT_EQ(batch.slot_mapping, anew.slot_mapping);
    EXPECT_EQ(batch.query_start_loc, anew.query_start_loc);
    EXPECT_EQ(batch.seq_start_loc, anew.seq_start_loc);
    EXPECT_EQ(batch.block_tables, anew.block_tables);
    EXPECT_EQ(batch.num_prefills, anew.num_prefills);
    EXPECT_EQ(batch.num_prefill_tokens, anew.num_prefill_tokens);
    EXPECT_EQ(batch.num_decode_tokens, anew.num_decode_tokens);
    EXPECT_EQ(batch.max_query_len, anew.max_query_len);
    EXPECT_EQ(batch.max_prefill_seq_len, anew.max_prefill_seq_len);
    EXPECT_EQ(batch.max_decode_seq_len, anew.max_decode_seq_len);
    EXPECT_EQ(batch.max_decode_query_len, anew.max_decode_query_len);
    EXPECT_EQ(batch.encoder_seq_start_loc, anew.encoder_seq_start_loc);
    EXPECT_EQ(batch.encoder_query_start_loc, anew.encoder_query_start_loc);
    EXPECT_EQ(batch.cross_slot_mapping, anew.cross_slot_mapping);
    EXPECT_EQ(batch.cross_block_tables, anew.cross_block_tables);
    EXPECT_EQ(batch.multi_modal_dest, anew.multi_modal_dest);
  });
}

// Integers: no set has its own.
INSTANTIATE_TEST_SUITE_P(Sets, BatchFuzzTest, testing::Values("auto"));

}  // namespace
}  // namespace baton
