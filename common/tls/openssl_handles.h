#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

// Owners of what OpenSSL allocates, and PEM in both directions.
namespace baton {

template <auto Free>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using BioPtr = std::unique_ptr<BIO, FreeBy<BIO_free_all>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;
using CertPtr = std::unique_ptr<X509, FreeBy<X509_free>>;
using StorePtr = std::unique_ptr<X509_STORE, FreeBy<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, FreeBy<X509_STORE_CTX_free>>;

// Null if there is none. An encrypted key is none: nobody is asked for a password.
KeyPtr ParseKey(const std::string& pem);

// All certificates, in order; empty if there is none or one cannot be read.
std::vector<CertPtr> ParseCertificates(const std::string& pem);

std::string ToPem(EVP_PKEY* key);
std::string ToPem(X509* certificate);

// Of the certificate's subject alternative names those that are URIs.
std::vector<std::string> UrisOf(const X509* certificate);

// Seconds since 1970.
int64_t NotBefore(const X509* certificate);
int64_t NotAfter(const X509* certificate);

}  // namespace baton
