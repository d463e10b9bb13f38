#include "kernels/api/model_ops.h"

#include "common/base/status.h"
#include "kernels/api/check_shapes.h"

namespace baton {

absl::Status ModelOps::RopeAndCache(const RopeAndCacheArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  if (args.rotary_dim > 0) {
    if (args.q) RETURN_IF_ERROR(Rope(args.RopeOfQ()));
    RETURN_IF_ERROR(Rope(args.RopeOfKey()));
  }
  return ReshapeAndCache(args.Write());
}

absl::Status ModelOps::GatedGemm(const GatedGemmArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(Gemm(args.product));
  return ActivationAndMul(args.Activation());
}

absl::Status ModelOps::GemmAndNorm(const GemmAndNormArgs& args) {
  RETURN_IF_ERROR(CheckShapes(args));
  RETURN_IF_ERROR(Gemm(args.product));
  return RmsNorm(args.Norm());
}

}  // namespace baton
