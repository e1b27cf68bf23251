//! A scripted target: its logins and its frames are valid, the contents are those of the test.

use std::collections::VecDeque;

use buf::Entropy;
use iscsi::login::{AuthPolicy, Authorization, Login, LoginAction, LoginCompletion, LoginPolicy};
use iscsi::name::TargetAddress;
use iscsi::negotiate::NegotiationLimits;
use iscsi::wire::{
    BHS_LEN, Bhs, CommandFlags, DataIn, DataInFlags, LogoutResponse, NopIn, Opcode, Pdu, ResponseFlags,
    ScsiCommand, ScsiResponse, ScsiStatus, Sn, TextFlags, TextResponse, TmfRequest, TmfResponse,
    TmfResponseCode, Tsih, padded_len,
};

/// How a command is answered.
#[derive(Clone, Debug)]
pub enum ScriptedAnswer {
    Good(Vec<u8>),
    /// CHECK CONDITION: sense key and additional sense code with its qualifier.
    Check(u8, u16),
    /// CHECK CONDITION with these bytes.
    Sense(Vec<u8>),
    Status(u8),
    Silence,
}

#[derive(Default)]
struct Conn {
    login: Option<Box<Login>>,
    open: bool,
    stat_sn: u32,
    inbox: Vec<u8>,
}

type AnswerFn = Box<dyn FnMut(&[u8; 16]) -> ScriptedAnswer>;
/// Does something to the PDUs that are said in answer to one of the full feature phase.
type MangleFn = Box<dyn FnMut(&mut Vec<Vec<u8>>)>;

pub struct ScriptedTarget {
    conns: Vec<Conn>,
    answer: AnswerFn,
    /// What is said is changed by this.
    pub mangle: Option<MangleFn>,
    /// Where logins are sent on, one after another.
    pub moves: VecDeque<TargetAddress>,
    /// How task management is answered; `None`: not at all.
    pub managed: Option<TmfResponseCode>,
    /// The functions that were asked for.
    pub functions: Vec<u8>,
    entropy: Entropy,
}

impl ScriptedTarget {
    pub fn new(answer: impl FnMut(&[u8; 16]) -> ScriptedAnswer + 'static) -> Self {
        ScriptedTarget {
            conns: Vec::new(),
            answer: Box::new(answer),
            mangle: None,
            moves: VecDeque::new(),
            managed: Some(TmfResponseCode::COMPLETE),
            functions: Vec::new(),
            entropy: Entropy::new([7; 32]),
        }
    }

    /// Takes what came by a connection; gives what is said to it.
    pub fn handle_bytes(&mut self, at: usize, bytes: &[u8]) -> Vec<u8> {
        while self.conns.len() <= at {
            self.conns.push(Conn { login: Some(Box::new(Login::new())), ..Conn::default() });
        }
        self.conns[at].inbox.extend(bytes);
        let mut out = Vec::new();
        while let Some(bhs) = Bhs::from_prefix(&self.conns[at].inbox).copied() {
            let whole = BHS_LEN + padded_len(bhs.data_len()).expect("short");
            if self.conns[at].inbox.len() < whole {
                break;
            }
            let pdu: Vec<u8> = self.conns[at].inbox.drain(..whole).collect();
            let (open, mut said) = (self.conns[at].open, Vec::new());
            self.handle_pdu(at, &bhs, &pdu[BHS_LEN..BHS_LEN + bhs.data_len()], &mut said);
            if let (Some(mangle), true) = (&mut self.mangle, open) {
                mangle(&mut said);
            }
            out.extend(said.into_iter().flatten());
        }
        out
    }

    fn handle_pdu(&mut self, at: usize, bhs: &Bhs, data: &[u8], out: &mut Vec<Vec<u8>>) {
        if !self.conns[at].open {
            return self.handle_login(at, bhs, data, out);
        }
        let cmd_sn = ScsiCommand::from_bhs(bhs).cmd_sn;
        let (exp, max) = (if bhs.is_immediate() { cmd_sn } else { cmd_sn.next() }, cmd_sn.add(64));
        let stat_sn = Sn::new(self.conns[at].stat_sn);
        macro_rules! say {
            ($pdu:ident, $data:expr) => {{
                ($pdu.exp_cmd_sn, $pdu.max_cmd_sn, $pdu.stat_sn) = (exp, max, stat_sn);
                $pdu.set_data_len($data.len());
                let mut said = [$pdu.as_bhs().bytes(), &$data[..]].concat();
                said.resize(said.len().next_multiple_of(4), 0);
                out.push(said);
            }};
        }
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => {
                let command = ScsiCommand::from_bhs(bhs);
                let answer = (self.answer)(&command.cdb);
                let edtl = command.expected_data_len.get() as usize;
                let (status, sense, data) = match answer {
                    ScriptedAnswer::Silence => return,
                    ScriptedAnswer::Good(data) => (0, vec![], data),
                    ScriptedAnswer::Check(key, code) => {
                        let [high, low] = code.to_be_bytes();
                        let sense = [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, high, low, 0, 0, 0, 0];
                        (2, sense.to_vec(), vec![])
                    }
                    ScriptedAnswer::Sense(sense) => (2, sense, vec![]),
                    ScriptedAnswer::Status(status) => (status, vec![], vec![]),
                };
                let reads = command.flags.contains(CommandFlags::READ);
                let given = &data[..if reads { data.len().min(edtl) } else { 0 }];
                if !given.is_empty() {
                    let mut pdu = DataIn::new();
                    pdu.flags = DataInFlags::FINAL;
                    pdu.itt = command.itt;
                    say!(pdu, given);
                }
                let mut pdu = ScsiResponse::new();
                (pdu.itt, pdu.status) = (command.itt, ScsiStatus(status));
                if reads && given.len() < edtl {
                    pdu.flags = pdu.flags.with(ResponseFlags::UNDERFLOW);
                    pdu.residual = ((edtl - given.len()) as u32).into();
                }
                let mut segment = Vec::new();
                if !sense.is_empty() {
                    segment.extend((sense.len() as u16).to_be_bytes());
                    segment.extend(sense);
                }
                say!(pdu, &segment);
            }
            Opcode::TMF_REQUEST => {
                let request = TmfRequest::from_bhs(bhs);
                self.functions.push(request.function().0);
                let Some(response) = self.managed else { return };
                let mut pdu = TmfResponse::new();
                (pdu.itt, pdu.response) = (request.itt, response);
                say!(pdu, &[0u8; 0]);
            }
            Opcode::TEXT_REQUEST => {
                let mut pdu = TextResponse::new();
                (pdu.itt, pdu.flags) = (bhs.itt, TextFlags::FINAL);
                say!(pdu, b"TargetName=iqn.2026-11.test:one\0TargetAddress=127.0.0.1:3260,1\0");
            }
            Opcode::NOP_OUT => {
                let mut pdu = NopIn::new();
                pdu.itt = bhs.itt;
                say!(pdu, &[0u8; 0]);
            }
            Opcode::LOGOUT_REQUEST => {
                let mut pdu = LogoutResponse::new();
                pdu.itt = bhs.itt;
                say!(pdu, &[0u8; 0]);
            }
            _data => return,
        }
        self.conns[at].stat_sn += 1;
    }

    fn handle_login(&mut self, at: usize, bhs: &Bhs, data: &[u8], out: &mut Vec<Vec<u8>>) {
        let conn = &mut self.conns[at];
        let Some(login) = &mut conn.login else { return };
        if login.handle_header(bhs).is_err() {
            return;
        }
        let mut step = login.handle_request(bhs, data, &mut self.entropy);
        let pdu = loop {
            match step {
                LoginAction::Authorize(_) => {
                    let authorization = match self.moves.pop_front() {
                        Some(to) => Authorization::MovedTemporarily(to),
                        None => Authorization::Granted(Box::new(LoginPolicy {
                            auth: AuthPolicy::None,
                            limits: NegotiationLimits {
                                first_burst: 65_536,
                                initial_r2t: false,
                                ..NegotiationLimits::default()
                            },
                            portal_group_tag: 1,
                            target_alias: None,
                        })),
                    };
                    step = login.authorize(authorization, &mut self.entropy);
                }
                LoginAction::Complete(_) => {
                    step = login.complete(LoginCompletion::NewSession { tsih: Tsih::new(3), window: 64 });
                }
                LoginAction::Send(pdu) | LoginAction::Refuse(pdu, _) => break pdu,
                LoginAction::Established(pdu, end) => {
                    conn.open = true;
                    conn.stat_sn = end.stat_sn.value();
                    break pdu;
                }
                LoginAction::Drop(_) => return,
            }
        };
        let mut said = [pdu.bhs.bytes(), &pdu.text[..]].concat();
        said.resize(said.len().next_multiple_of(4), 0);
        out.push(said);
    }
}

/// A small disk of 1000 blocks, as an honest target would answer.
pub fn honest_answer(cdb: &[u8; 16]) -> ScriptedAnswer {
    let page =
        |code: u8, body: &[u8]| ScriptedAnswer::Good([&[0, code, 0, body.len() as u8][..], body].concat());
    match (cdb[0], cdb[1], cdb[2]) {
        (0x12, 0, _) => {
            let mut data = vec![0, 0, 6, 2, 31, 0x10, 0, 2];
            data.extend(b"VENDOR  PRODUCT         1.0 ");
            ScriptedAnswer::Good(data)
        }
        (0x12, 1, 0x00) => page(0, &[0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2]),
        (0x12, 1, 0x80) => page(0x80, b"serial"),
        (0x12, 1, 0x83) => {
            let mut uuid = vec![1, 0x0a, 0, 18, 0x10, 0];
            uuid.extend([9; 16]);
            uuid.extend([1, 0x15, 0, 4, 0, 0, 0, 1]);
            page(0x83, &uuid)
        }
        (0x12, 1, 0xb0) => {
            let mut limits = [0; 60];
            (limits[1], limits[19], limits[23]) = (1, 100, 2);
            (limits[6], limits[7]) = (0, 64);
            page(0xb0, &limits)
        }
        (0x12, 1, 0xb1) => page(0xb1, &[0; 60]),
        (0x12, 1, 0xb2) => page(0xb2, &[0, 0xe0, 2, 0]),
        (0x9e, 0x10, _) => {
            let mut data = vec![0; 32];
            (data[6], data[7], data[10]) = (3, 0xe7, 2);
            data[14] = 0x80;
            ScriptedAnswer::Good(data)
        }
        (0x1a, _, _) => ScriptedAnswer::Good(vec![
            23, 0, 0x10, 0, 8, 18, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]),
        (0xa3, 0x0a, _) => ScriptedAnswer::Good(vec![0, 0, 0, 8, 0, 0x0f, 0, 1, 0, 0, 0, 0]),
        (0x28 | 0x88, _, _) => ScriptedAnswer::Good(vec![0x5a; usize::from(cdb[8]) * 512]),
        (0x12, _, _) | (0x9e, _, _) => ScriptedAnswer::Check(5, 0x2400),
        _ => ScriptedAnswer::Good(vec![]),
    }
}
