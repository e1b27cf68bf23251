//! Wrappers of sockets and of endpoints, which change one thing and pass the rest on.

/// The methods that `endpoint::Sockets` and `endpoint::Endpoint` share, except `poll_timeout`.
/// `$inner!(self, name => call)` makes each call on what is wrapped.
#[macro_export]
macro_rules! forward_links {
    ($inner:ident) => {
        fn poll_dial(&mut self) -> Option<::endpoint::Dial> {
            $inner!(self, inner => inner.poll_dial())
        }
        fn handle_dialled(
            &mut self,
            cx: &mut ::buf::Cx<'_>,
            id: ::endpoint::DialId,
            how: Result<::endpoint::Dialled, ::buf::Errno>,
        ) {
            $inner!(self, inner => inner.handle_dialled(cx, id, how));
        }
        fn handle_recv(
            &mut self,
            cx: &mut ::buf::Cx<'_>,
            link: ::endpoint::LinkId,
            op: ::stream::RecvOp,
            came: ::stream::Received,
        ) {
            $inner!(self, inner => inner.handle_recv(cx, link, op, came));
        }
        fn handle_written(
            &mut self,
            cx: &mut ::buf::Cx<'_>,
            link: ::endpoint::LinkId,
            how: Result<(), ::buf::Errno>,
        ) {
            $inner!(self, inner => inner.handle_written(cx, link, how));
        }
        fn handle_send_released(&mut self, cx: &mut ::buf::Cx<'_>, link: ::endpoint::LinkId, op: ::stream::SendOp) {
            $inner!(self, inner => inner.handle_send_released(cx, link, op));
        }
        fn poll_ready(&mut self) -> Option<::endpoint::LinkId> {
            $inner!(self, inner => inner.poll_ready())
        }
        fn poll_recv(
            &mut self,
            cx: &mut ::buf::Cx<'_>,
            link: ::endpoint::LinkId,
        ) -> Option<::stream::RecvOp> {
            $inner!(self, inner => inner.poll_recv(cx, link))
        }
        fn poll_send(
            &mut self,
            cx: &mut ::buf::Cx<'_>,
            link: ::endpoint::LinkId,
        ) -> Option<::stream::SendOp> {
            $inner!(self, inner => inner.poll_send(cx, link))
        }
        fn turn(&mut self, cx: &mut ::buf::Cx<'_>) -> bool {
            $inner!(self, inner => inner.turn(cx))
        }
        fn handle_timeout(&mut self, cx: &mut ::buf::Cx<'_>) {
            $inner!(self, inner => inner.handle_timeout(cx));
        }
    };
}
