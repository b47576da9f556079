//! The cases, by server.

pub(crate) mod consul;
pub(crate) mod etcd;
pub(crate) mod foreign_clients;
pub(crate) mod redis;
pub(crate) mod redis_topologies;
pub(crate) mod sql;
pub(crate) mod zookeeper;
