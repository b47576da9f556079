//! One suite for every backend and every layer: [`CASES`](cases::all) ×
//! [`FIXTURES`](fixtures::all).
//!
//! A case is an `async fn(&TestContext) -> anyhow::Result<()>` whose name is a sentence that can be
//! false. It says what it needs, and runs against every fixture that has it. A fixture is one row
//! in [`fixtures`]; a case is one row in its module. Nothing else is listed by hand.
#![allow(clippy::unwrap_used, reason = "the cases are tests")]

pub mod cases;
pub mod certificates;
pub mod clock;
pub mod context;
pub mod fault;
pub mod fixtures;
pub mod load;
pub mod network;
pub mod oracle;
pub mod peer;
pub mod program;
pub mod trials;

/// Every Rust snippet of the pages compiles, and those that need no server run. They are tested
/// here because here are the clients that the pages use.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../README.zh-CN.md")]
    struct ReadmeInChinese;
    #[doc = include_str!("../../../docs/connections.md")]
    struct Connections;
    #[doc = include_str!("../../../docs/modes.md")]
    struct ModesPage;
    #[doc = include_str!("../../../docs/election.md")]
    struct Election;
    #[doc = include_str!("../../../docs/faq.md")]
    struct Faq;
    #[doc = include_str!("../../../docs/fencing.md")]
    struct Fencing;
    #[doc = include_str!("../../../docs/zh-CN/fencing.md")]
    struct FencingInChinese;
    #[doc = include_str!("../../../crates/tenure-servers/README.md")]
    struct ServersReadme;
    #[doc = include_str!("../../../docs/servers.md")]
    struct Servers;
    #[doc = include_str!("../../../docs/backends/memory.md")]
    struct Memory;
    #[doc = include_str!("../../../docs/backends/etcd.md")]
    struct Etcd;
    #[doc = include_str!("../../../docs/backends/mysql.md")]
    struct Mysql;
    #[doc = include_str!("../../../docs/backends/postgres.md")]
    struct Postgres;
}
