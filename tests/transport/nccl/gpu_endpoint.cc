#include "tests/transport/nccl/gpu_endpoint.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

namespace baton {
namespace {

constexpr double kSlowness = 2;

}  // namespace

void ConfigureEmulatedNccl(const std::string& text) {
  void* const library = dlopen(BATON_EMULATED_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* const configure =
      reinterpret_cast<int (*)(const char*)>(dlsym(library, "baton_nccl_configure"));
  ASSERT_NE(configure, nullptr);
  ASSERT_EQ(configure(text.c_str()), 1) << text;
}

GpuEndpoint::~GpuEndpoint() {
  if (owned != nullptr) owned->transport.reset();
  carrier.reset();
  owned.reset();
  bytes = {};
}

void GpuEndpoint::Copy(bool up) {
  std::byte* const image = endpoint.cache->base();
  std::byte* const pool = endpoint.untouched->base();
  if (up) std::memcpy(bytes.data(), image, pool_bytes_);
  auto* piece = bytes.array<CopyPiece>(pool_bytes_);
  *piece = {up ? bytes.data() : pool, up ? pool : bytes.data(), pool_bytes_};
  Device& device = *processors.device;
  ASSERT_TRUE(device.CopyPieces(Lane::kCompute, {piece, 1}).ok());
  const auto mark = device.MarkNow(Lane::kCompute);
  ASSERT_TRUE(mark.ok() && Wait(device, *mark, kDeviceLimit).ok());
  if (!up) std::memcpy(image, bytes.data(), pool_bytes_);
}

void GpuEndpoint::Upload() { Copy(/*up=*/true); }
void GpuEndpoint::Download() { Copy(/*up=*/false); }

std::vector<std::string> GpuEndpoint::reasons() const {
  const std::lock_guard lock(mutex_);
  return reasons_;
}

std::unique_ptr<GpuEndpoint> MakeGpuEndpoint(const EndpointSpec& spec, int gpu,
                                             std::shared_ptr<const nccl::Library> library,
                                             KvTransport::EventSink also,
                                             const nccl::Staging::Options& staging) {
  auto made = std::make_unique<GpuEndpoint>();
  Endpoint& e = made->endpoint;
  GpuEndpoint* const raw = made.get();
  auto processors = MakeDevice({.device = "cuda:" + std::to_string(gpu)});
  EXPECT_TRUE(processors.ok()) << processors.status();
  made->processors = *std::move(processors);
  Device& device = *made->processors.device;
  e.spec = spec;
  const KvLayout layout{.block_size = spec.block_size,
                        .groups = {{.num_layers = spec.num_layers,
                                    .num_kv_heads = spec.heads().count,
                                    .k_dim = spec.k_dim,
                                    .v_dim = spec.k_dim + 4,
                                    .dtype = DType::kBF16}}};
  e.cache = *KvCache::Create(layout, spec.num_blocks);
  made->pool_bytes_ = (*KvCache::PoolBytes(layout, spec.num_blocks) + 7) / 8 * 8;
  e.untouched = *KvCache::Create(
      layout, spec.num_blocks, *device.Allocate(made->pool_bytes_, MemoryKind::kDevice),
      /*host=*/false);
  made->bytes =
      *device.Allocate(made->pool_bytes_ + int64_t{sizeof(CopyPiece)}, MemoryKind::kPinned);
  e.epochs = std::make_unique<BlockEpochs>(spec.num_blocks);
  e.secret.fill(static_cast<uint8_t>(spec.incarnation));
  e.FillCanary(0xCD);
  made->Upload();
  const auto lost = [raw](const absl::Status&) { raw->lost = true; };
  e.device_stager = *DeviceStager::Create(device, *e.untouched, lost);
  const double time_scale = kSlowness * spec.time_scale;
  if (library != nullptr) {
    const auto on_path = [raw](const std::string&, bool /*up*/, const std::string& why) {
      const std::lock_guard lock(raw->mutex_);
      if (!why.empty()) raw->reasons_.push_back(why);
    };
    made->carrier = *nccl::NcclCarrier::Create(
        std::move(library), device, *e.untouched,
        {.staging = staging,
         .limits = {.init_limit = std::chrono::seconds(3)},
         .time_scale = time_scale,
         .on_path = on_path,
         .on_lost = lost});
  }
  auto transport = TcpKvTransport::Create(
      {.transport = {.secret = e.secret,
                     .incarnation = spec.incarnation,
                     .cache = e.untouched.get(),
                     .stager = e.device_stager.get(),
                     .carrier = made->carrier.get(),
                     .epochs = e.epochs.get(),
                     .sink =
                         [raw, also = std::move(also)](TransferEvent event) {
                           raw->endpoint.log.Add(event);
                           if (also) also(std::move(event));
                         },
                     .place = spec.place,
                     .kv_heads = spec.kv_heads,
                     .max_frame_bytes = spec.max_frame_bytes},
       .time_scale = time_scale});
  EXPECT_TRUE(transport.ok()) << transport.status();
  e.address = (*transport)->endpoint();
  e.counters = [t = transport->get()] { return t->counters(); };
  e.transport = *std::move(transport);
  return made;
}

}  // namespace baton
