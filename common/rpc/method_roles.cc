#include "common/rpc/method_roles.h"

#include <algorithm>
#include <iterator>

namespace baton {
namespace {

enum class Callers { kRouter, kRouterOrAdmin, kAdmin };

struct MethodCallers {
  absl::string_view path;
  Callers callers;
};

constexpr MethodCallers kMethods[] = {
    {"/baton.v1.Decode/Decode", Callers::kRouter},
    {"/baton.v1.Decode/Rebind", Callers::kRouter},
    {"/baton.v1.Prefill/Prefill", Callers::kRouter},
    {"/baton.v1.Prefill/Send", Callers::kRouter},
    {"/baton.v1.Session/Open", Callers::kRouter},
    {"/baton.v1.Cluster/Hello", Callers::kRouterOrAdmin},
    {"/baton.v1.Cluster/Watch", Callers::kRouterOrAdmin},
    {"/baton.v1.Cluster/Drain", Callers::kAdmin},
    {"/baton.v1.Cluster/Audit", Callers::kAdmin},
    {"/baton.v1.Admin/Status", Callers::kAdmin},
    {"/baton.v1.Admin/Audit", Callers::kAdmin},
    {"/baton.v1.Admin/Drain", Callers::kAdmin},
    {"/grpc.health.v1.Health/Check", Callers::kRouterOrAdmin},
    {"/grpc.health.v1.Health/Watch", Callers::kRouterOrAdmin},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Callers::kRouterOrAdmin},
};

}  // namespace

std::optional<std::set<TlsRole>> RolesFor(absl::string_view path) {
  const auto found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                  [&](const MethodCallers& one) { return one.path == path; });
  if (found == std::end(kMethods)) return std::nullopt;
  switch (found->callers) {
    case Callers::kRouter:
      return std::set<TlsRole>{TlsRole::kRouter};
    case Callers::kRouterOrAdmin:
      return std::set<TlsRole>{TlsRole::kRouter, TlsRole::kAdmin};
    case Callers::kAdmin:
      return std::set<TlsRole>{TlsRole::kAdmin};
  }
  return std::nullopt;
}

}  // namespace baton
