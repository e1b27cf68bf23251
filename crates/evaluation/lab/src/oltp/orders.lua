-- Users who manage orders, in the manner of TPC-C: five transactions on nine tables of warehouses, in its
-- mix (45 % new orders, 43 % payments, 4 % each of deliveries, questions for an order and for stock).
--
-- It is not TPC-C: nobody waits between transactions, no order is taken back on purpose, customers are not
-- looked for by their names, and tables are as large as --items and --customers say. Each thread keeps to a
-- home warehouse.

if sysbench.cmdline.command == nil then
  error("a command is expected: prepare, run or cleanup")
end

sysbench.cmdline.options = {
  warehouses = {"Number of warehouses", 1},
  items = {"Items, and stock of each warehouse", 1000},
  customers = {"Customers of each district", 100},
}

local DISTRICTS = 10

local TABLES = {
  warehouse = "w_id INT PRIMARY KEY, w_name VARCHAR(10), w_tax NUMERIC(4,4), w_ytd NUMERIC(12,2)",
  district = "d_w_id INT, d_id INT, d_tax NUMERIC(4,4), d_ytd NUMERIC(12,2), d_next_o_id INT, PRIMARY KEY (d_w_id, d_id)",
  customer = "c_w_id INT, c_d_id INT, c_id INT, c_last VARCHAR(16), c_credit CHAR(2), c_discount NUMERIC(4,4), " ..
    "c_balance NUMERIC(12,2), c_ytd_payment NUMERIC(12,2), c_payment_cnt INT, c_data VARCHAR(300), " ..
    "PRIMARY KEY (c_w_id, c_d_id, c_id)",
  history = "h_c_id INT, h_c_d_id INT, h_c_w_id INT, h_amount NUMERIC(6,2), h_data VARCHAR(24)",
  orders = "o_w_id INT, o_d_id INT, o_id INT, o_c_id INT, o_carrier_id INT, o_ol_cnt INT, PRIMARY KEY (o_w_id, o_d_id, o_id)",
  new_orders = "no_w_id INT, no_d_id INT, no_o_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id)",
  order_line = "ol_w_id INT, ol_d_id INT, ol_o_id INT, ol_number INT, ol_i_id INT, ol_quantity INT, " ..
    "ol_amount NUMERIC(8,2), ol_dist_info CHAR(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)",
  item = "i_id INT PRIMARY KEY, i_name VARCHAR(24), i_price NUMERIC(5,2), i_data VARCHAR(50)",
  stock = "s_w_id INT, s_i_id INT, s_quantity INT, s_dist CHAR(24), s_ytd INT, s_order_cnt INT, s_data VARCHAR(250), " ..
    "PRIMARY KEY (s_w_id, s_i_id)",
}

local function text(length)
  return sysbench.rand.string(string.rep("@", length))
end

local function uniform(low, high)
  return sysbench.rand.uniform(low, high)
end

-- Some are asked for far more often than others, as TPC-C's NURand makes it.
local function often(mask, high)
  local a, b = uniform(0, mask), uniform(1, high)
  return bit.bor(a, b) % high + 1
end

local function fill(con, name, rows)
  con:bulk_insert_init("INSERT INTO " .. name .. " VALUES ")
  for values in rows do con:bulk_insert_next("(" .. values .. ")") end
  con:bulk_insert_done()
end

local function each(count, values)
  local at = 0
  return function()
    at = at + 1
    if at <= count then return values(at) end
  end
end

function prepare()
  local con = sysbench.sql.driver():connect()
  local options = sysbench.opt
  for name, columns in pairs(TABLES) do con:query("CREATE TABLE " .. name .. " (" .. columns .. ")") end
  con:query("CREATE INDEX customers_orders ON orders (o_w_id, o_d_id, o_c_id)")
  fill(con, "item", each(options.items, function(at)
    return ("%d,'%s',%.2f,'%s'"):format(at, text(14), uniform(100, 9999) / 100, text(38))
  end))
  for w = 1, options.warehouses do
    fill(con, "warehouse", each(1, function() return ("%d,'%s',0.1,300000"):format(w, text(8)) end))
    fill(con, "district", each(DISTRICTS, function(d)
      return ("%d,%d,0.1,30000,%d"):format(w, d, options.customers + 1)
    end))
    fill(con, "stock", each(options.items, function(at)
      return ("%d,%d,%d,'%s',0,0,'%s'"):format(w, at, uniform(10, 100), text(24), text(200))
    end))
    local count = DISTRICTS * options.customers
    local function place(at) return (at - 1) % DISTRICTS + 1, math.floor((at - 1) / DISTRICTS) + 1 end
    fill(con, "customer", each(count, function(at)
      local d, c = place(at)
      return ("%d,%d,%d,'%s','GC',0.1,-10,10,1,'%s'"):format(w, d, c, text(12), text(250))
    end))
    -- Every customer has ordered once; three in ten still wait for it.
    fill(con, "orders", each(count, function(at)
      local d, c = place(at)
      return ("%d,%d,%d,%d,%s,5"):format(w, d, c, c, c * 10 > options.customers * 7 and "NULL" or "1")
    end))
    fill(con, "order_line", each(count * 5, function(at)
      local d, o = place(math.floor((at - 1) / 5) + 1)
      return ("%d,%d,%d,%d,%d,5,0,'%s'"):format(w, d, o, (at - 1) % 5 + 1, uniform(1, options.items), text(24))
    end))
    local first = math.floor(options.customers * 7 / 10)
    fill(con, "new_orders", each((options.customers - first) * DISTRICTS, function(at)
      local d, o = place(at)
      return ("%d,%d,%d"):format(w, d, first + o)
    end))
  end
  con:disconnect()
end

function cleanup()
  local con = sysbench.sql.driver():connect()
  for name in pairs(TABLES) do con:query("DROP TABLE IF EXISTS " .. name) end
  con:disconnect()
end

function thread_init()
  con = sysbench.sql.driver():connect()
  home = sysbench.tid % sysbench.opt.warehouses + 1
end

function thread_done()
  con:disconnect()
end

local function ask(query, ...)
  local row = con:query_row(query:format(...))
  return row
end

local function say(query, ...)
  con:query(query:format(...))
end

local function new_order()
  local d, c, lines = uniform(1, DISTRICTS), often(1023, sysbench.opt.customers), uniform(5, 15)
  ask("SELECT c_discount FROM customer WHERE c_w_id=%d AND c_d_id=%d AND c_id=%d", home, d, c)
  local o = tonumber(ask("SELECT d_next_o_id FROM district WHERE d_w_id=%d AND d_id=%d FOR UPDATE", home, d))
  say("UPDATE district SET d_next_o_id=%d WHERE d_w_id=%d AND d_id=%d", o + 1, home, d)
  say("INSERT INTO orders VALUES (%d,%d,%d,%d,NULL,%d)", home, d, o, c, lines)
  say("INSERT INTO new_orders VALUES (%d,%d,%d)", home, d, o)
  -- In one order of items, so that two orders never wait for each other.
  local items, seen = {}, {}
  while #items < lines do
    local item = often(8191, sysbench.opt.items)
    if not seen[item] then seen[item] = true; items[#items + 1] = item end
  end
  table.sort(items)
  for line, item in ipairs(items) do
    local quantity = uniform(1, 10)
    local price = tonumber(ask("SELECT i_price FROM item WHERE i_id=%d", item))
    -- One in a hundred is delivered by another warehouse.
    local from = home
    if uniform(1, 100) == 1 then from = uniform(1, sysbench.opt.warehouses) end
    ask("SELECT s_quantity FROM stock WHERE s_w_id=%d AND s_i_id=%d FOR UPDATE", from, item)
    say("UPDATE stock SET s_quantity = CASE WHEN s_quantity >= %d THEN s_quantity - %d ELSE s_quantity - %d + 91 END, " ..
      "s_ytd = s_ytd + %d, s_order_cnt = s_order_cnt + 1 WHERE s_w_id=%d AND s_i_id=%d",
      quantity + 10, quantity, quantity, quantity, from, item)
    say("INSERT INTO order_line VALUES (%d,%d,%d,%d,%d,%d,%.2f,'%s')", home, d, o, line, item, quantity,
      price * quantity, text(24))
  end
end

local function payment()
  local d, c, amount = uniform(1, DISTRICTS), often(1023, sysbench.opt.customers), uniform(100, 500000) / 100
  say("UPDATE warehouse SET w_ytd = w_ytd + %.2f WHERE w_id=%d", amount, home)
  say("UPDATE district SET d_ytd = d_ytd + %.2f WHERE d_w_id=%d AND d_id=%d", amount, home, d)
  say("UPDATE customer SET c_balance = c_balance - %.2f, c_ytd_payment = c_ytd_payment + %.2f, " ..
    "c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id=%d AND c_d_id=%d AND c_id=%d", amount, amount, home, d, c)
  say("INSERT INTO history VALUES (%d,%d,%d,%.2f,'%s')", c, d, home, amount, text(20))
end

local function order_status()
  local d, c = uniform(1, DISTRICTS), often(1023, sysbench.opt.customers)
  ask("SELECT c_balance FROM customer WHERE c_w_id=%d AND c_d_id=%d AND c_id=%d", home, d, c)
  local o = ask("SELECT MAX(o_id) FROM orders WHERE o_w_id=%d AND o_d_id=%d AND o_c_id=%d", home, d, c)
  if o then say("SELECT ol_i_id, ol_quantity FROM order_line WHERE ol_w_id=%d AND ol_d_id=%d AND ol_o_id=%s", home, d, o) end
end

local function delivery()
  for d = 1, DISTRICTS do
    local o = ask("SELECT no_o_id FROM new_orders WHERE no_w_id=%d AND no_d_id=%d ORDER BY no_o_id LIMIT 1 FOR UPDATE", home, d)
    if o then
      say("DELETE FROM new_orders WHERE no_w_id=%d AND no_d_id=%d AND no_o_id=%s", home, d, o)
      local c = ask("SELECT o_c_id FROM orders WHERE o_w_id=%d AND o_d_id=%d AND o_id=%s", home, d, o)
      say("UPDATE orders SET o_carrier_id=%d WHERE o_w_id=%d AND o_d_id=%d AND o_id=%s", uniform(1, 10), home, d, o)
      local sum = ask("SELECT SUM(ol_amount) FROM order_line WHERE ol_w_id=%d AND ol_d_id=%d AND ol_o_id=%s", home, d, o)
      say("UPDATE customer SET c_balance = c_balance + %s WHERE c_w_id=%d AND c_d_id=%d AND c_id=%s", sum, home, d, c)
    end
  end
end

local function stock_level()
  local d = uniform(1, DISTRICTS)
  local o = tonumber(ask("SELECT d_next_o_id FROM district WHERE d_w_id=%d AND d_id=%d", home, d))
  ask("SELECT COUNT(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id=ol_w_id AND s_i_id=ol_i_id " ..
    "WHERE ol_w_id=%d AND ol_d_id=%d AND ol_o_id >= %d AND ol_o_id < %d AND s_quantity < %d",
    home, d, o - 20, o, uniform(10, 20))
end

function event()
  local which = uniform(1, 100)
  con:query("BEGIN")
  if which <= 45 then new_order()
  elseif which <= 88 then payment()
  elseif which <= 92 then delivery()
  elseif which <= 96 then order_status()
  else stock_level()
  end
  con:query("COMMIT")
end

-- A deadlock is rolled back and the transaction done again, as a user would.
function sysbench.hooks.before_restart_event()
  con:query("ROLLBACK")
end
