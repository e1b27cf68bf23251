//! The functions of OpenSSL 3 for external pre-shared keys under TLS 1.3, which the crate `openssl` does not
//! have, and the callbacks that they take. The only `unsafe` code of this crate.

use std::ffi::{c_int, c_uchar, c_void};
use std::ptr;

use foreign_types::{ForeignType, ForeignTypeRef};
use openssl::ssl::{SslContextBuilder, SslRef, SslSession};
use openssl_sys::{SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION};

use crate::ex_data::{find_server_psk, note_identity, offered_psk};
use crate::psk::Psk;

/// SSL_client_hello_get0_ext's number of pre_shared_key (RFC 8446 §4.2).
const PRE_SHARED_KEY: u32 = 41;
/// TLS 1.3 (RFC 8446 §4.1.2).
const TLS1_3_VERSION: c_int = 0x0304;

/// Given an SSL, an identity and its length, puts a session that holds the key.
type FindSession = extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;
/// Given an SSL and a hash or null, puts an identity, its length and a session that holds the key.
type UseSession =
    extern "C" fn(*mut SSL, *const c_void, *mut *const c_uchar, *mut usize, *mut *mut SSL_SESSION) -> c_int;

unsafe extern "C" {
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut SSL_SESSION, key: *const c_uchar, len: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut SSL, number: *const c_uchar) -> *const SSL_CIPHER;
}

/// A server's context asks [`find_server_psk`] for keys.
pub(crate) fn set_find_callback(builder: &mut SslContextBuilder) {
    // SAFETY: the context is valid as long as its builder; the callback is a function of this program, which is
    // there as long as it runs.
    unsafe { SSL_CTX_set_psk_find_session_callback(builder.as_ptr(), Some(find_session_callback)) }
}

/// A client's context offers [`offered_psk`].
pub(crate) fn set_use_callback(builder: &mut SslContextBuilder) {
    // SAFETY: as in `set_find_callback`.
    unsafe { SSL_CTX_set_psk_use_session_callback(builder.as_ptr(), Some(use_session_callback)) }
}

/// The session that holds a key; `None`: OpenSSL does not know its suite, or has no memory.
fn psk_session(ssl: *mut SSL, psk: &Psk) -> Option<SslSession> {
    let (suite, key) = (psk.suite(), psk.key());
    // SAFETY: `ssl` is what OpenSSL called back with and valid during the call; a suite's number has two bytes. What
    // is given lives as long as the library.
    let cipher = unsafe { SSL_CIPHER_find(ssl, suite.as_ptr()) };
    if cipher.is_null() {
        return None;
    }
    // SAFETY: makes a new session, or null.
    let session = unsafe { SSL_SESSION_new() };
    if session.is_null() {
        return None;
    }
    // SAFETY: the session is new and nobody else's; from here on it is freed when it is dropped.
    let session = unsafe { SslSession::from_ptr(session) };
    // SAFETY: session and cipher are valid, and the key is copied within its length.
    let is_set = unsafe {
        SSL_SESSION_set1_master_key(session.as_ptr(), key.as_ptr(), key.len()) == 1
            && SSL_SESSION_set_cipher(session.as_ptr(), cipher) == 1
            && SSL_SESSION_set_protocol_version(session.as_ptr(), TLS1_3_VERSION) == 1
    };
    is_set.then_some(session)
}

/// Hands a session over to OpenSSL, which frees it.
fn into_raw_session(session: SslSession) -> *mut SSL_SESSION {
    let pointer = session.as_ptr();
    std::mem::forget(session);
    pointer
}

extern "C" fn find_session_callback(
    ssl: *mut SSL,
    identity: *const c_uchar,
    len: usize,
    into: *mut *mut SSL_SESSION,
) -> c_int {
    let identity = if len == 0 || identity.is_null() {
        &[][..]
    } else {
        // SAFETY: OpenSSL gives that many bytes of the ClientHello, which stay during the call.
        unsafe { std::slice::from_raw_parts(identity, len) }
    };
    // SAFETY: OpenSSL calls with a valid SSL that only this thread uses.
    let handle = unsafe { SslRef::from_ptr_mut(ssl) };
    let found = find_server_psk(handle, identity).and_then(|psk| psk_session(ssl, &psk));
    note_identity(handle, identity, found.is_some());
    // SAFETY: OpenSSL gives a place for a pointer; null says that there is no such key.
    unsafe { *into = found.map_or(ptr::null_mut(), into_raw_session) };
    1
}

extern "C" fn use_session_callback(
    ssl: *mut SSL,
    _hash: *const c_void,
    identity: *mut *const c_uchar,
    len: *mut usize,
    into: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls with a valid SSL that only this thread uses.
    let handle = unsafe { SslRef::from_ptr(ssl) };
    let Some((name, psk)) = offered_psk(handle) else { return 0 };
    let Some(session) = psk_session(ssl, psk) else { return 0 };
    // SAFETY: OpenSSL gives places for all three. The identity is part of the context, which the SSL keeps.
    unsafe {
        *identity = name.as_ptr();
        *len = name.len();
        *into = into_raw_session(session);
    }
    1
}

/// The content of the ClientHello's extension pre_shared_key, while the ClientHello is looked at.
pub(crate) fn pre_shared_key_extension(ssl: &SslRef) -> Option<&[u8]> {
    let (mut at, mut len) = (ptr::null(), 0);
    // SAFETY: the SSL is valid; outside of the callback for a ClientHello the function gives 0.
    let is_there =
        unsafe { openssl_sys::SSL_client_hello_get0_ext(ssl.as_ptr(), PRE_SHARED_KEY, &mut at, &mut len) };
    if is_there != 1 || at.is_null() {
        return None;
    }
    // SAFETY: OpenSSL gives so many bytes of the ClientHello, which stays as long as its callback, and the caller
    // borrows the SSL for no longer.
    Some(unsafe { std::slice::from_raw_parts(at, len) })
}
