//! The verbs of libibverbs and the calls of librdmacm, as rdma-sys declares them, and what it lacks.
//!
//! Three things are to be known. `ibv_query_port` is a macro in C, whose function fills the fields of an old layout only;
//! [`query_port`] is what the macro calls. No structure has a default; all zeros is one for each that is used here. And the
//! types of a GID cannot be asked for (`ibv_query_gid_ex` is not declared): they are read from sysfs, in `safe`.
#![allow(unsafe_code, reason = "declarations of a library in C")]

use std::ffi::c_int;

pub(super) use rdma_sys::{
    ibv_access_flags, ibv_ack_cq_events, ibv_ah_attr, ibv_alloc_pd, ibv_close_device, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_dealloc_pd, ibv_dereg_mr,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp, ibv_device_attr, ibv_free_device_list,
    ibv_get_cq_event, ibv_get_device_list, ibv_get_device_name, ibv_gid, ibv_modify_qp, ibv_mr,
    ibv_open_device, ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_port_state, ibv_post_recv, ibv_post_send,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_query_device, ibv_query_gid, ibv_recv_wr, ibv_reg_mr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wc_status_str, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_establish, rdma_event_channel, rdma_event_str,
    rdma_get_cm_event, rdma_get_src_port, rdma_init_qp_attr, rdma_listen, rdma_port_space, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route, rdma_t,
};

/// Link layer of an Ethernet port, in `ibv_port_attr::link_layer`.
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

/// Fills `attributes`, which must be zeroed, with those of a port.
///
/// # Safety
/// `context` is an open device.
pub(super) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: &mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promise; the structure is initialised and exclusively borrowed.
    unsafe { rdma_sys::___ibv_query_port(context, port, attributes) }
}
