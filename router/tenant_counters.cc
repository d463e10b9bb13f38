#include "router/tenant_counters.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {
namespace {

// A token of a tenant of weight 1.
constexpr int64_t kUnit = 1 << 10;

}  // namespace

TenantAccount& TenantCounters::Join(const std::string& name, int32_t weight) {
  auto it = active_.find(name);
  if (it == active_.end()) {
    auto account = std::make_unique<TenantAccount>();
    account->name = name;
    account->id = next_id_++;
    account->counter = Least();
    if (const auto debt = debts_.find(name); debt != debts_.end()) {
      account->counter = std::max(account->counter, debt->second);
      debts_by_counter_.erase({debt->second, name});
      debts_.erase(debt);
    }
    account->listed = account->counter;
    by_counter_.emplace(account->listed, account->id, account.get());
    it = active_.emplace(name, std::move(account)).first;
  }
  it->second->weight = std::clamp(weight, 1, kMaxWeight);
  ++it->second->live;
  return *it->second;
}

void TenantCounters::Part(TenantAccount& account) {
  BATON_CHECK(account.live > 0);
  if (--account.live > 0) return;
  Least();
  Remember(account);
  BATON_CHECK(by_counter_.erase({account.listed, account.id, &account}) == 1);
  active_.erase(std::string(account.name));
  Least();
}

void TenantCounters::Charge(TenantAccount& account, int64_t tokens) {
  BATON_CHECK(account.live > 0);
  const VirtualCounter units = VirtualCounter(tokens) * kUnit / account.weight;
  account.counter = std::max<VirtualCounter>(account.counter + units, 0);
  if (account.counter < account.listed) List(account);
}

void TenantCounters::List(TenantAccount& account) {
  BATON_CHECK(by_counter_.erase({account.listed, account.id, &account}) == 1);
  account.listed = account.counter;
  by_counter_.emplace(account.listed, account.id, &account);
}

VirtualCounter TenantCounters::Least() {
  if (by_counter_.empty()) return floor_;
  // Where charges have not been looked at yet, an account is listed too low.
  for (;;) {
    const auto& [least, id, account] = *by_counter_.begin();
    if (least == account->counter) break;
    BATON_CHECK(least < account->counter);
    List(*account);
  }
  const VirtualCounter least = std::get<0>(*by_counter_.begin());
  if (least > floor_) {
    floor_ = least;
    ForgetUpTo(floor_);
  }
  return least;
}

void TenantCounters::Remember(const TenantAccount& account) {
  if (account.counter <= floor_) return;
  BATON_CHECK(debts_.emplace(account.name, account.counter).second);
  debts_by_counter_.emplace(account.counter, account.name);
  if (debts_.size() > kMaxRemembered) ForgetUpTo(debts_by_counter_.begin()->first);
}

void TenantCounters::ForgetUpTo(VirtualCounter counter) {
  while (!debts_by_counter_.empty() && debts_by_counter_.begin()->first <= counter) {
    debts_.erase(debts_by_counter_.begin()->second);
    debts_by_counter_.erase(debts_by_counter_.begin());
  }
  BATON_CHECK(debts_.size() == debts_by_counter_.size() && debts_.size() <= kMaxRemembered);
}

}  // namespace baton
