//! The cases, by server.

pub(crate) mod consul;
pub(crate) mod etcd;
pub(crate) mod redis;
pub(crate) mod redis_many;
pub(crate) mod sql;
pub(crate) mod strangers;
pub(crate) mod zookeeper;
