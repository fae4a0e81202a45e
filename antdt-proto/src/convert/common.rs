//! Conversion of holders and leases.

use antdt_core as core;

use super::WireError;
use crate::v1;

impl From<core::Holder> for v1::Holder {
    fn from(holder: core::Holder) -> Self {
        let role = match holder.node.role {
            core::Role::Worker => v1::Role::Worker,
            core::Role::Server => v1::Role::Server,
        };
        Self { role: role.into(), index: holder.node.index, incarnation: holder.incarnation.0 }
    }
}

impl TryFrom<v1::Holder> for core::Holder {
    type Error = WireError;

    fn try_from(wire: v1::Holder) -> Result<Self, WireError> {
        let role = match v1::Role::try_from(wire.role) {
            Ok(v1::Role::Worker) => core::Role::Worker,
            Ok(v1::Role::Server) => core::Role::Server,
            Ok(v1::Role::Unspecified) | Err(_) => {
                return Err(WireError::Unknown { field: "holder.role", value: wire.role.into() });
            }
        };
        Ok(Self::new(core::NodeId { role, index: wire.index }, core::Incarnation(wire.incarnation)))
    }
}

impl From<core::LeaseId> for v1::LeaseId {
    fn from(lease: core::LeaseId) -> Self {
        Self { generation: lease.generation.0, sequence: lease.sequence }
    }
}

impl From<v1::LeaseId> for core::LeaseId {
    fn from(wire: v1::LeaseId) -> Self {
        Self { generation: core::Generation(wire.generation), sequence: wire.sequence }
    }
}
