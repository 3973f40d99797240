use super::*;

use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// The size of a structure and the offsets of its fields: C's expression for each, and ours.
macro_rules! layout {
    ($rows:ident, $c:literal, $rust:ty, [$($field:ident $(= $c_field:literal)?),*]) => {
        $rows.push((format!("sizeof({})", $c), size_of::<$rust>() as i64));
        $(
            #[allow(unused_mut, unused_assignments, reason = "not every field has another name")]
            let mut name = stringify!($field);
            $(name = $c_field;)?
            $rows.push((format!("offsetof({}, {name})", $c), offset_of!($rust, $field) as i64));
        )*
    };
}

/// Every layout and constant: C's expression, and ours.
fn rows() -> Vec<(String, i64)> {
    let mut rows = Vec::new();
    layout!(
        rows,
        "ucp_params_t",
        Params,
        [
            field_mask,
            features,
            request_size,
            request_init,
            request_cleanup,
            tag_sender_mask,
            mt_workers_shared,
            estimated_num_eps,
            estimated_num_ppn,
            name
        ]
    );
    layout!(
        rows,
        "ucp_worker_params_t",
        WorkerParams,
        [
            field_mask,
            thread_mode,
            cpu_mask,
            events,
            user_data,
            event_fd,
            flags,
            name,
            am_alignment,
            client_id
        ]
    );
    layout!(rows, "ucp_err_handler_t", ErrorHandler, [cb, arg]);
    layout!(rows, "ucs_sock_addr_t", SocketAddress, [addr, addrlen]);
    layout!(
        rows,
        "ucp_ep_params_t",
        EndpointParams,
        [
            field_mask,
            address,
            err_mode,
            err_handler,
            user_data,
            flags,
            sockaddr,
            conn_request,
            name,
            local_sockaddr
        ]
    );
    layout!(
        rows,
        "ucp_am_recv_param_t",
        ReceiveParam,
        [recv_attr, reply_ep]
    );
    layout!(
        rows,
        "ucp_am_handler_param_t",
        HandlerParam,
        [field_mask, id, flags, cb, arg]
    );
    layout!(
        rows,
        "ucp_request_param_t",
        RequestParam,
        [
            op_attr_mask,
            flags,
            request,
            cb,
            datatype,
            user_data,
            reply_buffer,
            memory_type,
            recv_info,
            memh
        ]
    );
    layout!(rows, "ucp_dt_iov_t", IoVec, [buffer, length]);
    rows.push((
        "sizeof(ucs_status_t)".to_owned(),
        size_of::<Status>() as i64,
    ));
    let constants: &[(&str, i64)] = &[
        ("UCS_OK", OK.into()),
        ("UCS_INPROGRESS", IN_PROGRESS.into()),
        ("UCS_ERR_BUSY", ERR_BUSY.into()),
        ("UCS_ERR_LAST", ERR_LAST.into()),
        ("UCP_PARAM_FIELD_FEATURES", PARAM_FEATURES as i64),
        (
            "UCP_PARAM_FIELD_MT_WORKERS_SHARED",
            PARAM_MT_WORKERS_SHARED as i64,
        ),
        ("UCP_FEATURE_WAKEUP", FEATURE_WAKEUP as i64),
        ("UCP_FEATURE_AM", FEATURE_AM as i64),
        (
            "UCP_WORKER_PARAM_FIELD_THREAD_MODE",
            WORKER_PARAM_THREAD_MODE as i64,
        ),
        ("UCS_THREAD_MODE_SERIALIZED", THREAD_MODE_SERIALIZED.into()),
        (
            "UCP_EP_PARAM_FIELD_REMOTE_ADDRESS",
            EP_PARAM_REMOTE_ADDRESS as i64,
        ),
        (
            "UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE",
            EP_PARAM_ERR_HANDLING_MODE as i64,
        ),
        (
            "UCP_EP_PARAM_FIELD_ERR_HANDLER",
            EP_PARAM_ERR_HANDLER as i64,
        ),
        ("UCP_ERR_HANDLING_MODE_PEER", ERR_HANDLING_MODE_PEER.into()),
        ("UCP_AM_HANDLER_PARAM_FIELD_ID", AM_HANDLER_ID as i64),
        ("UCP_AM_HANDLER_PARAM_FIELD_FLAGS", AM_HANDLER_FLAGS as i64),
        ("UCP_AM_HANDLER_PARAM_FIELD_CB", AM_HANDLER_CB as i64),
        ("UCP_AM_HANDLER_PARAM_FIELD_ARG", AM_HANDLER_ARG as i64),
        ("UCP_AM_FLAG_WHOLE_MSG", AM_FLAG_WHOLE_MSG.into()),
        ("UCP_AM_RECV_ATTR_FLAG_RNDV", AM_RECV_RNDV as i64),
        ("UCP_OP_ATTR_FIELD_DATATYPE", OP_DATATYPE.into()),
        ("UCP_OP_ATTR_FIELD_FLAGS", OP_FLAGS.into()),
        ("UCP_OP_ATTR_FIELD_MEMORY_TYPE", OP_MEMORY_TYPE.into()),
        ("UCP_AM_SEND_FLAG_EAGER", AM_SEND_EAGER.into()),
        ("ucp_dt_make_iov()", DATATYPE_IOV as i64),
        ("ucp_dt_make_contig(1)", DATATYPE_BYTES as i64),
        ("UCS_MEMORY_TYPE_HOST", MEMORY_TYPE_HOST.into()),
        ("UCP_EP_CLOSE_FLAG_FORCE", EP_CLOSE_FORCE.into()),
    ];
    rows.extend(
        constants
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value)),
    );
    rows
}

/// The types of the functions, as declarations that C checks against the header's.
const FUNCTIONS: &str = "
void ucp_get_version(unsigned *, unsigned *, unsigned *);
ucs_status_t ucp_config_read(const char *, const char *, ucp_config_t **);
ucs_status_t ucp_config_modify(ucp_config_t *, const char *, const char *);
void ucp_config_release(ucp_config_t *);
ucs_status_t ucp_init_version(unsigned, unsigned, const ucp_params_t *, const ucp_config_t *,
                              ucp_context_h *);
void ucp_cleanup(ucp_context_h);
ucs_status_t ucp_worker_create(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *);
void ucp_worker_destroy(ucp_worker_h);
ucs_status_t ucp_worker_get_address(ucp_worker_h, ucp_address_t **, size_t *);
void ucp_worker_release_address(ucp_worker_h, ucp_address_t *);
unsigned ucp_worker_progress(ucp_worker_h);
ucs_status_t ucp_worker_get_efd(ucp_worker_h, int *);
ucs_status_t ucp_worker_arm(ucp_worker_h);
ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h, const ucp_am_handler_param_t *);
ucs_status_t ucp_ep_create(ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *);
ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h, const ucp_request_param_t *);
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h, const ucp_request_param_t *);
ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h, unsigned, const void *, size_t, const void *, size_t,
                                 const ucp_request_param_t *);
ucs_status_t ucp_request_check_status(void *);
void ucp_request_free(void *);
const char *ucs_status_string(ucs_status_t);
";

#[test]
fn layouts_and_constants_are_those_of_the_header() {
    if !Path::new("/usr/include/ucp/api/ucp.h").exists() {
        eprintln!("skipped: no header of UCX (Debian: libucx-dev)");
        return;
    }
    let mut source = format!(
        "#include <stddef.h>\n#include <ucp/api/ucp.h>\n{FUNCTIONS}\n\
         ucp_am_recv_callback_t receive; ucp_err_handler_cb_t error;\n"
    );
    for (expression, ours) in rows() {
        let _ = writeln!(
            source,
            "_Static_assert((long long)({expression}) == {ours}LL, \"{expression} is not {ours}\");"
        );
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("layouts.c");
    std::fs::write(&file, source).expect("a file");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-fsyntax-only"])
        .arg(&file)
        .output();
    let Ok(compiled) = compiled else {
        eprintln!("skipped: no C compiler");
        return;
    };
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
}
