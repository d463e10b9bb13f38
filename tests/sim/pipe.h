#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/tcp/byte_stream.h"
#include "tests/sim/fabric.h"

namespace baton::sim {

// One connection of the data network: two directions of bytes, as TCP carries them, between the
// ports at its two ends. Side 0 connected, side 1 accepts with the first bytes.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  Pipe(Fabric& fabric, FabricPort* from, Place to);

  static std::unique_ptr<ByteStream> StreamOf(std::shared_ptr<Pipe> pipe, int side);
  static void WatchStream(ByteStream& stream, uint64_t id, bool read, bool write);

  void Connect();
  ssize_t Read(int side, const iovec* parts, int num_parts);
  ssize_t Write(int side, const iovec* parts, int num_parts);
  absl::Status ConnectResult() const;
  int side_of(const FabricPort* port) const { return ends_[0].port == port ? 0 : 1; }
  // Sends what was written in this turn.
  void Flush(int side);
  // Tells once more of what a stream has that was not read in this turn.
  void ReadOn(int side);
  // The stream at this side is gone; the other side hears of it behind what was sent.
  void Close(int side);
  // So is the process.
  void PortDied(const FabricPort* port);
  bool is_dead() const;
  // Starts anew if anything of it was lost without a word, or waits for the end of a cut.
  void Heal();

 private:
  // A frame that was changed on its way. Offsets in bytes since the connection began.
  struct Damage {
    uint64_t end = 0;        // When its receiver has read that far it can know.
    bool in_header = false;  // Or frames before it are missing: nothing may be read after it.
    FrameHeader frame;       // Whose payload it is.
  };
  struct End {
    FabricPort* port = nullptr;  // Null before the connection stands and after the process died.
    uint64_t id = 0;             // Its port's name of the stream.
    bool open = false;           // It has a stream.
    bool wants_read = true;
    bool reads_on = false;  // It is to be told.
    bool is_reset = false;
    bool is_finished = false;  // The other side sends nothing more.
    bool must_close = false;   // It has read what no reader may accept.
    std::string arrived;
    uint64_t num_read = 0;
    std::deque<Damage> damages;  // Of what it will read.

    // What it writes.
    bool can_write = false;
    bool wants_write = false;
    std::string written;  // In this turn.
    uint64_t num_written = 0;
    uint64_t frame_left = 0;  // Bytes of the frame that was written in part.
    bool lost_frame = false;  // Before what is written next.
    Time last_arrival{};
  };

  // Its process lives and has a stream, or will accept one: else the port may be gone.
  bool listens(int side) const {
    return ends_[side].port != nullptr && (ends_[side].open || (side == 1 && !accepted_));
  }
  void Watch(int side, uint64_t id, bool read, bool write);
  Time NextArrival(int to_side);
  void Arrive(int side, const std::string& bytes);
  void Ready(int side, bool readable, bool writable);
  void HangUp(int side, Time when);
  void Reset();
  void WaitForRoom(int side);
  void OnFrame(int side, const FrameHeader& header, size_t size, std::string* bytes);
  void NoteRead(End& end);
  // Of a carrier; what it says must be so.
  void CheckWord(int side, const std::string& frame);

  Fabric& fabric_;
  World& world_;
  std::array<Place, 2> places_;
  std::array<End, 2> ends_;
  bool refused_ = false;
  bool accepted_ = false;
  // Announced over NCCL, by epoch and number of the batch.
  std::map<std::pair<uint32_t, uint64_t>, std::vector<FrameHeader>> announced_;
};

}  // namespace baton::sim
