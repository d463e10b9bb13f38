#include "common/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/transport/nccl/stub_nccl.h"

namespace baton::nccl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class NcclLibraryTest : public testing::Test {
 protected:
  NcclLibraryTest() {
    void* library = dlopen(BATON_STUB_NCCL, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    stub_ = static_cast<Stub*>(dlsym(library, "stub_nccl"));
    *stub_ = {};
  }

  std::unique_ptr<Library> OpenStub() {
    absl::StatusOr<std::unique_ptr<Library>> library = Library::Open(BATON_STUB_NCCL);
    EXPECT_TRUE(library.ok()) << library.status();
    return *std::move(library);
  }

  Stub* stub_;
  Comm* const comm_ = reinterpret_cast<Comm*>(uintptr_t{0x1000});
};

TEST_F(NcclLibraryTest, EnvironmentNamesTheFile) {
  unsetenv(kLibraryVariable);
  EXPECT_EQ(LibraryPath(), "libnccl.so.2");
  setenv(kLibraryVariable, "", 1);
  EXPECT_EQ(LibraryPath(), "libnccl.so.2");
  setenv(kLibraryVariable, BATON_STUB_NCCL, 1);
  const absl::StatusOr<std::unique_ptr<Library>> library = Library::Open();
  unsetenv(kLibraryVariable);
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ((*library)->path(), BATON_STUB_NCCL);
}

TEST_F(NcclLibraryTest, LibraryThatIsNotThereIsNotFound) {
  const absl::Status status = Library::Open("/nowhere/libnccl.so.2").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("/nowhere/libnccl.so.2"));
}

TEST_F(NcclLibraryTest, AnotherLibraryIsRefusedByTheEntryPointThatItLacks) {
  const absl::Status status = Library::Open("libm.so.6").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("libm.so.6"), HasSubstr("ncclGetVersion")));
}

TEST_F(NcclLibraryTest, VersionsFrom2_18OnAreTaken) {
  stub_->version = 21799;
  const absl::Status status = Library::Open(BATON_STUB_NCCL).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("2.17.99"), HasSubstr("2.18.0")));
  stub_->version = 21800;
  EXPECT_EQ(OpenStub()->version(), 21800);
  stub_->version = 23007;
  EXPECT_EQ(VersionText(OpenStub()->version()), "2.30.7");
}

TEST_F(NcclLibraryTest, LibraryThatDoesNotTellItsVersionIsRefused) {
  stub_->version_result = Result::kSystemError;
  EXPECT_TRUE(absl::IsFailedPrecondition(Library::Open(BATON_STUB_NCCL).status()));
}

TEST_F(NcclLibraryTest, CallsHaveTheArgumentsOfTheInterface) {
  const auto library = OpenStub();
  const absl::StatusOr<UniqueId> id = library->MakeUniqueId();
  ASSERT_TRUE(id.ok());
  const absl::StatusOr<Comm*> comm = library->Init(*id, 1);
  ASSERT_TRUE(comm.ok());
  auto* data = reinterpret_cast<void*>(uintptr_t{100});
  auto* stream = reinterpret_cast<void*>(uintptr_t{200});
  EXPECT_TRUE(library->GroupStart().ok());
  EXPECT_TRUE(library->Send(*comm, 0, data, 48, stream).ok());
  EXPECT_TRUE(library->Receive(*comm, 1, data, 96, stream).ok());
  EXPECT_TRUE(library->GroupEnd().ok());
  EXPECT_TRUE(*library->AsyncState(*comm));
  EXPECT_TRUE(library->Abort(*comm).ok());
  EXPECT_THAT(stub_->calls, ElementsAre("GetUniqueId", "Init 2 u 1", "GroupStart",
                                        "Send 100 48 1 0 4096 200", "Recv 100 96 1 1 4096 200",
                                        "GroupEnd", "GetAsyncError 4096", "Abort 4096"));
}

// As a program that was compiled with NCCL 2.18's own header has it.
TEST_F(NcclLibraryTest, ConfigurationIsThatOf2_18ByteForByte) {
  const auto library = OpenStub();
  ASSERT_TRUE(library->Init(UniqueId(), 0).ok());
  const int32_t words[12] = {48,  0, static_cast<int32_t>(0xcafebeef),
                             21800, 0, INT32_MIN,
                             4,   4, 0,
                             0,   INT32_MIN, 0};
  EXPECT_EQ(std::memcmp(&stub_->config, words, 44), 0);
}

TEST_F(NcclLibraryTest, CallUnderWayIsNoErrorAndNotOver) {
  const auto library = OpenStub();
  stub_->result = Result::kInProgress;
  const absl::StatusOr<Comm*> comm = library->Init(UniqueId(), 0);
  ASSERT_TRUE(comm.ok());
  EXPECT_EQ(*comm, comm_);
  EXPECT_TRUE(library->Send(comm_, 1, nullptr, 0, nullptr).ok());
  stub_->result = Result::kSuccess;
  stub_->async = Result::kInProgress;
  const absl::StatusOr<bool> state = library->AsyncState(comm_);
  ASSERT_TRUE(state.ok());
  EXPECT_FALSE(*state);
}

TEST_F(NcclLibraryTest, ErrorsHaveTheCallNcclsTextAndItsLastError) {
  const auto library = OpenStub();
  stub_->result = Result::kRemoteError;
  stub_->last_error = "the socket was closed";
  const absl::Status status = library->Send(comm_, 1, nullptr, 0, nullptr);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "ncclSend: remote error: the socket was closed");
  stub_->last_error = "";
  EXPECT_EQ(library->Abort(comm_).message(), "ncclCommAbort: remote error");
}

TEST_F(NcclLibraryTest, AsynchronousErrorIsAskedOfItsCommunicator) {
  const auto library = OpenStub();
  stub_->async = Result::kRemoteError;
  stub_->last_error = "the peer is gone";
  const absl::Status status = library->AsyncState(comm_).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "NCCL: remote error: the peer is gone");
  EXPECT_THAT(stub_->calls, ElementsAre("GetAsyncError 4096", "GetLastError 4096"));
}

TEST_F(NcclLibraryTest, ErrorsTellWhoseTheyAre) {
  const auto library = OpenStub();
  const std::pair<Result, absl::StatusCode> expected[] = {
      {Result::kUnhandledCudaError, absl::StatusCode::kUnavailable},
      {Result::kSystemError, absl::StatusCode::kUnavailable},
      {Result::kInternalError, absl::StatusCode::kInternal},
      {Result::kInvalidArgument, absl::StatusCode::kInvalidArgument},
      {Result::kInvalidUsage, absl::StatusCode::kFailedPrecondition},
      {Result::kRemoteError, absl::StatusCode::kUnavailable},
      {static_cast<Result>(99), absl::StatusCode::kInternal}};
  for (const auto& [result, code] : expected) {
    stub_->result = result;
    EXPECT_EQ(library->GroupEnd().code(), code);
    EXPECT_EQ(library->MakeUniqueId().status().code(), code);
    EXPECT_EQ(library->Init(UniqueId(), 0).status().code(), code);
    EXPECT_EQ(library->AsyncState(comm_).status().code(), code);
    EXPECT_EQ(library->Receive(comm_, 0, nullptr, 0, nullptr).code(), code);
    EXPECT_EQ(library->Abort(comm_).code(), code);
  }
}

}  // namespace
}  // namespace baton::nccl
