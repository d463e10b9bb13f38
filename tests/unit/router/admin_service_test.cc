#include "router/admin_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "baton/v1/admin.pb.h"
#include "common/base/task_pool.h"
#include "common/rpc/admin_call.h"
#include "common/rpc/connection.h"
#include "common/rpc/method_roles.h"
#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr Duration kAnswerLimit = std::chrono::seconds(20);
constexpr const char* kAdminMethods[] = {"/baton.v1.Admin/Status", "/baton.v1.Admin/Audit",
                                         "/baton.v1.Admin/Drain"};

class AdminServerTest : public ::testing::Test {
 protected:
  AdminServerTest()
      : router_(authority_, TlsRole::kRouter),
        server_({.host = "127.0.0.1",
                 .tls = router_.tls.get(),
                 .status = [] { return std::string("{\"ready\":true}"); },
                 .audit = [this] { return audit_; },
                 .drain = [this] { ++drains_; },
                 .executor = [this](std::function<void()> task) {
                   if (!drops_) pool_.Post("admin", std::move(task));
                 }}) {
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status;
    address_ = absl::StrCat("127.0.0.1:", server_.port());
  }
  std::shared_ptr<grpc::ChannelCredentials> Client(const TlsFiles& files) const {
    return AnyServer(files, authority_.certificate_pem());
  }
  absl::StatusOr<std::string> Ask(AdminMethod method) const {
    const TlsParty admin(authority_, TlsRole::kAdmin);
    return CallAdmin(address_, method, *admin.tls, kAnswerLimit);
  }

  const CertificateAuthority authority_ = NewAuthority("test.local", UnixSeconds());
  const TlsParty router_;
  TaskPool pool_{{.name = "ops"}};
  absl::StatusOr<std::string> audit_ = "{\"sequences\":[]}";
  std::atomic<int> drains_ = 0;
  std::atomic<bool> drops_ = false;
  AdminServer server_;
  std::string address_;
};

TEST_F(AdminServerTest, AnAdminSeesStatusAndAuditAndDrains) {
  EXPECT_EQ(Ask(AdminMethod::kStatus).value(), "{\"ready\":true}");
  EXPECT_EQ(Ask(AdminMethod::kAudit).value(), "{\"sequences\":[]}");
  audit_ = absl::UnavailableError("the node stands still");
  EXPECT_EQ(Ask(AdminMethod::kAudit).status(), absl::UnavailableError("the node stands still"));
  EXPECT_EQ(drains_, 0);
  EXPECT_EQ(Ask(AdminMethod::kDrain).value(), "{}");
  EXPECT_EQ(drains_, 1);
}

// An audit of a router names all of its sequences.
TEST_F(AdminServerTest, ADocumentMayBeLargerThanAMessageOfTheControlPlane) {
  const std::string large(kMaxGrpcMessageBytes + 1000, 'a');
  audit_ = large;
  EXPECT_TRUE(Ask(AdminMethod::kAudit).value() == large);
}

TEST_F(AdminServerTest, ATaskThatIsDroppedIsAnAnswerToo) {
  drops_ = true;
  EXPECT_TRUE(absl::IsUnavailable(Ask(AdminMethod::kStatus).status()));
}

TEST_F(AdminServerTest, EveryOtherRoleIsRefusedByEveryMethodAndEveryMethodIsListed) {
  const auto* service = v1::AdminRequest::descriptor()->file()->service(0);
  ASSERT_EQ(service->full_name(), "baton.v1.Admin");
  EXPECT_EQ(service->method_count(), std::ssize(kAdminMethods));
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string path = absl::StrCat("/baton.v1.Admin/", service->method(i)->name());
    EXPECT_TRUE(RolesFor(path)) << path;
    for (const TlsRole role : kTlsRoles) {
      const grpc::StatusCode code =
          CallMethod(address_, Client(NewFiles(authority_, IdOf(role), UnixSeconds())), path);
      EXPECT_EQ(code, role == TlsRole::kAdmin ? grpc::StatusCode::OK
                                              : grpc::StatusCode::PERMISSION_DENIED)
          << RoleWord(role) << " " << path;
    }
  }
  // A worker's methods are not this server's, and not everybody's to try.
  const auto admin = Client(NewFiles(authority_, IdOf(TlsRole::kAdmin), UnixSeconds()));
  EXPECT_EQ(CallMethod(address_, admin, "/baton.v1.Decode/Decode"),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(CallMethod(address_, admin, "/baton.v1.Admin/Unlisted"),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(drains_, 1);  // The admin's.
}

TEST_F(AdminServerTest, WhoIsNotOfTheReleaseDoesNotGetThroughTheHandshake) {
  const CertificateAuthority other = NewAuthority("test.local", UnixSeconds());
  const SpiffeId admin = IdOf(TlsRole::kAdmin);
  const int64_t now_s = UnixSeconds();
  const std::map<std::string, std::shared_ptr<grpc::ChannelCredentials>> strangers = {
      {"plaintext", grpc::InsecureChannelCredentials()},
      {"no certificate", Client(TlsFiles())},
      {"other CA", Client(NewFiles(other, admin, now_s))},
      {"expired", Client(NewFiles(authority_, admin, now_s - (kLeafDays + 1) * kDayS))},
      {"of the future", Client(NewFiles(authority_, admin, now_s + 2 * kBackdateS))},
      {"other release", Client(NewFiles(authority_, IdOf(TlsRole::kAdmin, "x"), now_s))},
      {"the CA itself", Client(TlsFiles{.key_pem = authority_.key_pem(),
                                        .chain_pem = authority_.certificate_pem()})},
  };
  for (const auto& [name, credentials] : strangers) {
    for (const char* method : kAdminMethods) {
      EXPECT_EQ(CallMethod(address_, credentials, method), grpc::StatusCode::UNAVAILABLE)
          << name << " " << method;
    }
  }
  EXPECT_EQ(drains_, 0);
}

TEST_F(AdminServerTest, APortThatIsTakenIsSaidByItsOption) {
  AdminServer second({.host = "127.0.0.1", .port = server_.port(), .tls = router_.tls.get()});
  EXPECT_THAT(second.Start().message(),
              HasSubstr(absl::StrCat("--admin-port ", server_.port(), ": cannot listen")));
}

}  // namespace
}  // namespace baton
