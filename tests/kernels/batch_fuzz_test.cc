// Random batches with encoders and images: their halves are their rows, and one that is moved on in
// place is one that is built anew. BATON_FUZZ_SEED and BATON_FUZZ_CASES choose others.
#include <array>
#include <map>

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
        if (Chance(60)) {
          ranges.push_back({at, static_cast<int32_t>(Below(11)), static_cast<int32_t>(Below(3))});
        }
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
    r.args.num_modalities = 3;
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

  // What a token of the batch takes, as (modality, row, range, element), from the maps alone.
  using Takes = std::map<int32_t, std::array<int32_t, 4>>;
  static Takes TakesOf(const Batch& batch, const Sequences& sequences) {
    Takes takes;
    for (size_t m = 0; m < batch.multi_modal_placeholder_index_maps.size(); ++m) {
      const PlaceholderIndexMap& map = batch.multi_modal_placeholder_index_maps[m];
      EXPECT_EQ(map.src.size(), map.dest.size());
      EXPECT_EQ(map.index_start_loc.back(), std::ssize(map.src));
      for (size_t row = 0; row < batch.order.size(); ++row) {
        // Embeddings of a row are its ranges that hold a token of it.
        std::vector<std::pair<int32_t, int32_t>> embeddings;
        const BatchSequence& s = sequences.all[batch.order[row]];
        for (int32_t r = 0; r < s.num_placeholders; ++r) {
          const auto [offset, length, modality] = s.placeholders[r];
          const bool holds =
              offset < s.context_len + s.query_len && offset + length > s.context_len && length > 0;
          if (modality != static_cast<int32_t>(m) || !holds) continue;
          for (int32_t i = 0; i < length; ++i) embeddings.emplace_back(r, i);
        }
        const int32_t first = map.embedding_start_loc[row];
        EXPECT_EQ(map.embedding_start_loc[row + 1] - first, std::ssize(embeddings));
        for (int32_t i = map.index_start_loc[row]; i < map.index_start_loc[row + 1]; ++i) {
          const auto [range, element] = embeddings.at(map.src[i] - first);
          const auto taken = takes.insert(
              {map.dest[i], {static_cast<int32_t>(m), static_cast<int32_t>(row), range, element}});
          EXPECT_TRUE(taken.second) << "token " << map.dest[i] << " takes two embeddings";
        }
      }
    }
    return takes;
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
    // Each token of a prompt that lies in a range takes that element of it, each other nothing.
    Takes expected;
    for (size_t row = 0; row < batch->order.size(); ++row) {
      const BatchSequence& s = sequences.all[batch->order[row]];
      for (int32_t i = 0; i < s.query_len; ++i) {
        const int32_t p = s.context_len + i;
        for (int32_t r = 0; r < s.num_placeholders; ++r) {
          const auto [offset, length, modality] = s.placeholders[r];
          if (p < offset || p >= offset + length) continue;
          expected[batch->query_start_loc[row] + i] = {modality, static_cast<int32_t>(row), r,
                                                       p - offset};
        }
      }
    }
    EXPECT_EQ(TakesOf(*batch, sequences), expected);
    EXPECT_EQ(TakesOf(prefills, sequences), expected);
    EXPECT_TRUE(TakesOf(decodes, sequences).empty());
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
    for (int m = 0; m < 3; ++m) {
      const PlaceholderIndexMap& map = batch.multi_modal_placeholder_index_maps.at(m);
      const PlaceholderIndexMap& expected = anew.multi_modal_placeholder_index_maps.at(m);
      EXPECT_EQ(map.src, expected.src);
      EXPECT_EQ(map.dest, expected.dest);
      EXPECT_EQ(map.index_start_loc, expected.index_start_loc);
      EXPECT_EQ(map.embedding_start_loc, expected.embedding_start_loc);
    }
  });
}

// Integers: no set has its own.
INSTANTIATE_TEST_SUITE_P(Sets, BatchFuzzTest, testing::Values("auto"));

}  // namespace
}  // namespace baton
